from training.benchmarks.records import (
    EngineRow,
    GenerationRow,
    MemoryRow,
    PlanningRow,
    Rates,
    TrainingRow,
    as_record,
)


def test_rates_are_summarized_by_their_median_and_extremes():
    assert Rates.of([1.0, 9.0, 4.0]) == Rates(median=4.0, lowest=1.0, highest=9.0)


def test_the_keys_of_json_are_those_that_others_may_read():
    rates, ratios = Rates(2.0, 1.0, 3.0), Rates(1.5, 1.0, 2.0)
    told, ratio = {"median": 2.0, "lowest": 1.0, "highest": 3.0}, {"median": 1.5, "lowest": 1.0, "highest": 2.0}
    training = as_record(TrainingRow("ours", "", rates, 4.0, ratios, 7.0))
    keys = ["what", "precision", "target tokens/s", "peak memory, GB", "ours is times", "utilization"]
    assert list(training) == keys
    assert list(training.values()) == ["ours", "", told, 4.0, ratio, 7.0]
    planning = as_record(PlanningRow("1,000", 8, "9", 1.0, 2.0, 3.0))
    assert list(planning) == ["pairs", "length_groups", "updates", "seconds", "real tokens, %", "peak memory, GB"]
    assert list(planning.values()) == ["1,000", 8, "9", 1.0, 2.0, 3.0]
    generation = as_record(GenerationRow("ours, bf16", "2 workers", "greedy", rates, ratios, ratios))
    keys = ["what", "on", "search", "target tokens/s", "ours in bf16 is times", "ours in int8 is times"]
    assert list(generation) == keys
    assert list(generation.values()) == ["ours, bf16", "2 workers", "greedy", told, ratio, ratio]
    memory = as_record(MemoryRow("train", "base", 1, 2, 3, 4, 5.0, 6.0, "7"))
    keys = ["what", "model", "batch tokens", "sentence length", "vocabulary", "beams", "peak, GB", "estimate, GB"]
    assert memory == dict(zip([*keys, "GB"], ["train", "base", 1, 2, 3, 4, 5.0, 6.0, "7"], strict=True))
    engine = as_record(EngineRow("torch", "int8", rates, ratios, rates, 1.0, 2.0, 3.0))
    keys = ["engine", "precision", "sentences/s", "tokens/s", "first line, s", "peak memory, GB", "chrF to float32"]
    values = ["torch", "int8", told, ratio, told, 1.0, 2.0, 3.0]
    assert engine == dict(zip([*keys, "equal to float32, %"], values, strict=True))


def test_a_record_leaves_out_what_its_row_lacks():
    assert as_record(GenerationRow("not installed")) == {"what": "not installed"}
