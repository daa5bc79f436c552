"""Each figure of Table 2 comes from where it should."""

import pytest

from training.tables.systems import records
from training.tables.systems.records import collect, means
from training.tables.systems.translations import Decoding
from vaswani.scoring import significance
from vaswani.scoring.references import EvaluationSet
from vaswani.scoring.significance import compare


# Of the hyphen the two protocols make other tokens.
REFERENCES = [f"the {word} cat sat on the age-old mat today" for word in ("big", "small", "red", "blue", "sad", "fat")]
WRONG = [sentence.replace("old mat", "old rug") for sentence in REFERENCES]
TEXT = EvaluationSet("test", "test", ["a b c"] * 3 + ["a b c d e f"] * 3, REFERENCES)


@pytest.fixture
def collected(make_plan, finish, monkeypatch):
    for name in ("BOOTSTRAP_SAMPLES", "RANDOMIZATION_TRIALS"):  # fewer, as every test needs them
        monkeypatch.setattr(significance, name, 50)
    plan = make_plan(learning_rate_factors=[0.5, 2.0])
    for run, perplexity in zip(plan.plan_search(), (9.0, 8.0, 4.0, 5.0), strict=True):
        finish(run, perplexity)
    plan.choose()
    decodings = {}
    for number, run in enumerate(plan.plan_runs()):
        finish(run, 10.0 + number, speed=500.0)
        found = WRONG[:4] + REFERENCES[4:] if run.name.startswith("recurrent") else list(REFERENCES)
        if run.name == "transformer-2":  # the seeds differ
            found[5] = WRONG[5]
        decodings[run.name] = Decoding(found, tokens=60, seconds=2.0 + number)
    return plan, collect(plan, TEXT, decodings, "de"), decodings


def test_a_result_has_the_figures_of_its_run(collected):
    plan, table, _ = collected
    result, entry = table.of("recurrent")[0], plan.entries[0]
    assert (result.seed, result.learning_rate_factor, result.max_steps) == (1, 2.0, entry.steps)
    assert (result.parameters, result.flops_per_target_token) == (entry.parameters, entry.flops_per_target_token)
    assert result.search_flops == 2 * 10_000 * entry.flops_per_target_token  # as much as was spent, by two rates
    assert result.target_tokens == 10_000
    assert result.training_flops == 10_000 * entry.flops_per_target_token
    assert result.training_seconds == 4000 / 500 + 6000 / 1000
    assert result.training_tokens_per_second == 750
    assert result.perplexity == 11.0  # of the text that is scored, not of validation
    assert (result.decoding_seconds, result.decoding_tokens_per_second) == (2.0, 30.0)


def test_differences_are_to_the_transformer_of_the_same_seed(collected):
    _, table, decodings = collected
    result = table.of("recurrent")[1]
    expected = compare(decodings["recurrent-2"].translations, decodings["transformer-2"].translations, REFERENCES)
    assert result.minus_baseline == expected["sacrebleu"]["difference"] < 0
    assert result.p_value == expected["sacrebleu"]["bootstrap_p_value"]
    assert result.paper_minus_baseline == expected["paper_bleu"]["difference"]
    assert result.paper_minus_baseline != result.minus_baseline
    assert result.paper_p_value == expected["paper_bleu"]["bootstrap_p_value"]
    first, second = table.of("transformer")
    assert first.sacrebleu == pytest.approx(100)
    assert second.sacrebleu < 99
    assert [(one.minus_baseline, one.p_value) for one in (first, second)] == [(None, None)] * 2


def test_each_protocol_has_a_difference_and_a_p_value_of_its_own(collected, monkeypatch):
    plan, _, decodings = collected
    found = {"sacrebleu": (-1.0, 0.1), "paper_bleu": (-2.0, 0.2)}
    names = "difference", "bootstrap_p_value"
    rows = {protocol: dict(zip(names, figures, strict=True)) for protocol, figures in found.items()}
    monkeypatch.setattr(records, "compare", lambda *given, **how: rows)
    result = collect(plan, TEXT, decodings, "de").of("recurrent")[0]
    assert (result.minus_baseline, result.p_value) == found["sacrebleu"]
    assert (result.paper_minus_baseline, result.paper_p_value) == found["paper_bleu"]


def test_curves_are_of_the_evaluations_on_the_way_of_the_first_seed(collected):
    plan, _, decodings = collected
    metrics = plan.entries[1].runs[1].directory / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"sacrebleu": 3.0', '"sacrebleu": 7.0'))
    [point] = collect(plan, TEXT, decodings, "de").curves["transformer"]
    assert (point.flops, point.bleu) == (4000 * plan.entries[1].flops_per_target_token, 3.0)


def test_bleu_by_length_is_the_mean_over_seeds(collected):
    _, table, _ = collected
    assert [part.name for part in table.parts] == ["3", "4-6"]
    short, long = table.bleu_by_length["recurrent"]
    assert short < long < 100
    short, long = table.bleu_by_length["transformer"]
    assert short == pytest.approx(100)
    assert long < 99


def test_a_mean_needs_all_seeds(collected):
    _, table, _ = collected
    assert means(table.of("recurrent"), "perplexity") == 11.5
    assert means(table.of("transformer"), "p_value") is None
    assert means([], "perplexity") is None


def test_runs_that_are_not_finished_are_left_out(collected):
    plan, _, decodings = collected
    some = {name: decoding for name, decoding in decodings.items() if name == "recurrent-1"}
    table = collect(plan, TEXT, some, "xx")
    [result] = table.results
    assert (result.system, result.paper_bleu, result.minus_baseline) == ("recurrent", None, None)
    assert list(table.signatures) == ["sacrebleu"]


def test_text_that_was_tokenized_is_scored_by_its_tokens(collected, monkeypatch):
    plan, _, decodings = collected
    asked = {}
    for name in ("bleu_of", "compare"):
        function = getattr(records, name)
        monkeypatch.setattr(
            records,
            name,
            lambda *given, name=name, does=function, **how: asked.update({name: how}) or does(*given, **how),
        )
    table = collect(plan, TEXT, decodings, "de", tokenized=True)
    assert list(table.signatures) == ["sacrebleu"]
    assert "tok:none" in table.signatures["sacrebleu"]
    assert {result.paper_bleu for result in table.results} == {None}
    how = {"target_lang": "de", "tokenized": True}
    assert asked == {"bleu_of": how, "compare": how}
