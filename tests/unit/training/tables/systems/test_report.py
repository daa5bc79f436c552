"""Table 2 as people see it."""

import csv
import dataclasses

import pytest

from training.tables.systems.catalogue import SYSTEMS
from training.tables.systems.records import Point, Result, Table, means
from training.tables.systems.report import STYLES, cost, list_plan, quality, write_report
from vaswani.scoring.lengths import Bucket
from vaswani.scoring.references import EvaluationSet


TEXT = EvaluationSet("test", "test", ["a"] * 6, ["a"] * 6)


@pytest.fixture
def table():
    """Return a table in which no two figures of a system are equal."""
    names = [field.name for field in dataclasses.fields(Result)][2:]
    results = []
    for system, start in (("recurrent", 100), ("transformer", 200)):
        for seed in (1, 2):
            figures = {name: start + index + seed / 10 for index, name in enumerate(names)}
            if system == "transformer":
                figures |= dict.fromkeys(("minus_baseline", "p_value", "paper_minus_baseline", "paper_p_value"))
            results.append(Result(system=system, seed=seed, **figures))
    curves = {name: [Point(1e12, 3.0), Point(2e12, 5.0)] for name in ("recurrent", "transformer")}
    parts, by_length = [Bucket(1, 5, [0, 1]), Bucket(6, 9, [2])], {"recurrent": [9.1, 4.2], "transformer": [9.3, 8.4]}
    return Table(results, curves, parts, by_length, {"sacrebleu": "today's"})


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[2:3] != "-"]


def test_each_figure_stands_under_its_title(table):
    titles, row, _ = cells(cost(table))
    found = dict(zip(titles, row, strict=True))
    middle = {name: means(table.of("recurrent"), name) for name in list(vars(table.results[0]))[2:]}
    assert found["parameters"] == f"{middle['parameters']:,.0f}"
    assert found["training seconds"] == f"{middle['training_seconds']:,.0f}"
    assert found["target tokens/s, decoding"] == f"{middle['decoding_tokens_per_second']:,.0f}"
    assert found["target tokens/s, training"] == f"{middle['training_tokens_per_second']:,.0f}"
    assert found["updates"] == f"{middle['max_steps']:,.0f}"
    assert found["target tokens"] == f"{middle['target_tokens']:,.0f}"
    assert found["learning rate factor"] == f"{middle['learning_rate_factor']:g}"
    assert found["FLOPs per target token"] == f"{middle['flops_per_target_token']:.2e}"
    for title, name in (("FLOPs of the search", "search_flops"), ("training FLOPs", "training_flops")):
        assert found[title] == f"{middle[name]:.1e}"
    titles, row, baseline = cells(quality(table))
    one, two = table.results[:2]
    assert row[titles.index("PPL")] == f"{(one.perplexity + two.perplexity) / 2:.2f}"
    assert row[titles.index("BLEU (paper's protocol)")] == f"{(one.paper_bleu + two.paper_bleu) / 2:.2f}"
    differences = [cell for title, cell in zip(titles, row, strict=True) if title == "less Transformer's"]
    assert differences == [f"{middle[name]:+.2f}" for name in ("paper_minus_baseline", "minus_baseline")]
    assert row[titles.index("sacreBLEU of each seed")] == f"{one.sacrebleu:.2f}, {two.sacrebleu:.2f}"
    assert row[titles.index("p")] == f"{two.p_value:.3f}"  # the larger one
    assert baseline[titles.index("p")] == ""


def test_the_files_hold_what_was_measured(table, make_plan, finish, tmp_path):
    plan = make_plan(learning_rate_factors=[0.5, 1.0])
    plan.options.output_dir.mkdir(exist_ok=True)
    for run in plan.plan_search():
        finish(run, 5.0)
    plan.choose()
    for run in plan.plan_runs():
        finish(run, 5.0)
    write_report(plan, table, TEXT, tmp_path, "python training/table2.py --x")
    text = (tmp_path / "table2.md").read_text()
    for part in (
        "`python training/table2.py --x`",
        "4 of 4 runs are finished.",
        "grammar, en to de; scored on 6 sentences of test",
        "the one with the lowest perplexity on validation after 10% of its updates, of 0.5, 1, and of half or twice",
        "Seeds 1, 2",
        "`today's`",
        "| recurrent | 9.1 | 4.2 |",
        "1-5 words (2)",
        "| ConvS2S | 25.16 | 40.46 | 9.6e+18 | 1.5e+20 |",
    ):
        assert part in text, part
    with (tmp_path / "table2.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["system"], row["seed"]) for row in rows] == [
        ("recurrent", "1"), ("recurrent", "2"), ("transformer", "1"), ("transformer", "2"),
    ]  # fmt: skip
    assert float(rows[1]["perplexity"]) == table.results[1].perplexity
    assert (tmp_path / "table2.png").read_bytes().startswith(b"\x89PNG")


def test_systems_are_told_apart_by_colour_by_dash_and_by_mark():
    assert set(STYLES) == set(SYSTEMS)
    assert all(len(set(signs)) == len(SYSTEMS) for signs in zip(*STYLES.values(), strict=True))


def test_before_any_run_has_finished_there_is_the_papers_table(make_plan, tmp_path):
    write_report(make_plan(), Table([], {}, [], {}, {}), TEXT, tmp_path, "command")
    text = (tmp_path / "table2.md").read_text()
    assert "0 of 4 runs are finished." in text
    assert "ByteNet" in text
    assert not (tmp_path / "table2.csv").exists()


def test_the_list_says_what_training_will_cost(make_plan):
    plan = make_plan()
    row = list_plan(plan).splitlines()[-2].split()
    entry = plan.entries[0]
    assert row[-5:] == [
        f"{entry.parameters:,}", f"{entry.flops_per_target_token:.2e}", f"{entry.steps:,}", f"{entry.steps * 1000:,}",
        "1.0e+13",
    ]  # fmt: skip
    assert list_plan(make_plan(flops=None, minutes=3.0)).count("by time") == 6
