from training.benchmarks.records import GenerationRow, PlanningRow, Rates, TrainingRow, as_record


def test_rates_are_summarized_by_their_median_and_extremes():
    assert Rates.of([1.0, 9.0, 4.0]) == Rates(median=4.0, lowest=1.0, highest=9.0)


def test_the_keys_of_json_are_those_that_others_may_read():
    training = as_record(TrainingRow("ours", "", 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0))
    keys = ["what", "precision", "median", "lowest", "highest"]
    assert list(training) == [*keys, "peak memory, GB", "times ours", "ours is times", "utilization"]
    assert list(training.values()) == ["ours", "", 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    planning = as_record(PlanningRow("1,000", 8, "9", 1.0, 2.0, 3.0))
    assert list(planning) == ["pairs", "length_groups", "updates", "seconds", "real tokens, %", "peak memory, GB"]
    assert list(planning.values()) == ["1,000", 8, "9", 1.0, 2.0, 3.0]
    generation = as_record(GenerationRow("ours", "greedy", "bf16", 1.0, 2.0, 3.0, 4.0))
    keys = ["what", "search", "precision", "median", "lowest", "highest"]
    assert list(generation) == [*keys, "ours in bf16 is times"]


def test_a_record_leaves_out_what_its_row_lacks():
    assert as_record(GenerationRow("not installed")) == {"what": "not installed"}
