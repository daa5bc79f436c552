from dataclasses import asdict

from training.tables.cost import count_parameters, flops_per_target_token
from training.tables.records import Differences, Measurement, describe_row, differences_to_base, measure, report_rows
from training.tables.rows import ROWS
from training.tables.scaling import scale_config


def test_a_description_holds_the_config_the_recipe_and_the_papers_figures(planned_run):
    run = planned_run("B-k16")
    config = ROWS["B-k16"].config
    flops = flops_per_target_token(config)
    description = asdict(describe_row(ROWS["B-k16"], 1.0, run))
    expected = {
        "row": "B-k16",
        "config_name": "B-k16",
        "layers": 6,
        "d_model": 512,
        "d_ff": 2048,
        "heads": 8,
        "d_k": 16,
        "d_v": 64,
        "positions": "sinusoidal",
        "dropout": 0.1,
        "label_smoothing": 0.1,
        "max_steps": 10,
        "target_tokens": 250_000,
        "vocab_size": 37_000,
        "parameters": count_parameters(config, 37_000),
        "parameters_with_40960_types": 58_018_304,
        "paper_parameters": 58_000_000,
        "flops_per_target_token": flops,
        "training_flops": flops * 250_000,
        "paper_training_flops": None,
        "paper_perplexity": 5.16,
        "paper_bleu": 25.1,
    }
    assert description == expected
    assert list(description) == list(expected)  # the keys of `table3.py --list --json`, which others may read


def test_a_description_of_a_scaled_row_is_that_of_the_scaled_model(planned_run):
    description = describe_row(ROWS["D-ls0.2"], 0.25, planned_run("D-ls0.2"))
    assert (description.layers, description.d_model, description.d_ff) == (3, 128, 512)
    assert (description.heads, description.d_k, description.d_v, description.label_smoothing) == (8, 16, 16, 0.2)
    assert description.parameters == count_parameters(scale_config(ROWS["base"].config, 0.25), 37_000)
    assert (description.parameters_with_40960_types, description.paper_parameters) == (None, None)
    assert describe_row(ROWS["C-ff1024"], 0.25, planned_run("C-ff1024")).d_ff == 256


def test_big_costs_what_table_2_says(planned_run):
    assert f"{describe_row(ROWS['big'], 1.0, planned_run('big')).paper_training_flops:.1e}" == "2.3e+19"


def test_what_is_measured_is_the_last_evaluation_on_validation(finished_row):
    assert measure(finished_row("base", 5.0, 20.123, 31.0)) == Measurement(
        seeds=1,
        perplexity=5.0,
        perplexity_spread=None,
        bleu=20.12,
        bleu_spread=None,
        bleu_signature="the paper's",
        sacrebleu=31.0,
        sacrebleu_signature="today's",
        decoding="beam 4",
        sentences=5,
        trained_target_tokens=300,
        tokens_per_second=50.0,
    )


def test_of_several_seeds_means_and_spreads_are_measured(finished_row):
    figures = ("base", 5.0, 20.0, 31.0), ("base-2018", 5.5, 19.0, 31.5), ("base-2019", 5.1, 22.0, 32.0)
    measurement = measure(*(finished_row(*each) for each in figures))
    assert (measurement.seeds, measurement.perplexity, measurement.perplexity_spread) == (3, 5.2, 0.5)
    assert (measurement.bleu, measurement.bleu_spread, measurement.sacrebleu) == (20.33, 3.0, 31.5)
    assert (measurement.trained_target_tokens, measurement.tokens_per_second) == (300, 50.0)


def test_where_the_papers_protocol_does_not_know_the_language_bleu_is_todays(finished_row):
    measurement = measure(finished_row("base", 5.0, None, 31.0))
    assert (measurement.bleu, measurement.bleu_signature) == (31.0, "today's")


def test_differences_are_the_row_minus_base_here_and_in_the_paper(finished_row):
    base, one = (measure(finished_row(*figures)) for figures in (("base", 5.0, 20.0, 1.0), ("A-h1", 5.75, 18.0, 2.0)))
    assert differences_to_base("A-h1", one, base) == Differences(0.75, 0.37, -2.0, -0.9)
    assert (
        differences_to_base("A-h1", one, None)
        == differences_to_base("A-h1", None, base)
        == Differences(None, 0.37, None, -0.9)
    )
    assert differences_to_base("big", None, None) == Differences(None, -0.59, None, 0.6)


def test_rows_are_measured_by_their_own_runs(finished_row, planned_run):
    runs = [finished_row("base", 5.0, 20.0, 1.0), planned_run("A-h1"), finished_row("big", 4.0, 24.0, 2.0)]
    finished = {"base": runs[:1], "A-h1": [], "big": runs[2:]}
    rows = report_rows([describe_row(ROWS[run.name], 1.0, run) for run in runs], finished)
    assert [row.name for row in rows] == ["base", "A-h1", "big"]
    assert [row.measurement and row.measurement.perplexity for row in rows] == [5.0, None, 4.0]
    assert [row.differences.bleu_minus_base for row in rows] == [0.0, None, 4.0]
    assert "perplexity" not in rows[1].record()
