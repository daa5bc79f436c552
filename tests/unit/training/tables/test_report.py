import csv

import matplotlib.figure
import pytest

from training.tables.layout import align
from training.tables.records import Description, Measurement, describe_row, report_rows
from training.tables.report import Ordering, compare_orderings, draw, tables, write_report
from training.tables.rows import ROWS


# The columns of table3.csv, which others may read.
HEADER = (
    "row,config_name,layers,d_model,d_ff,heads,d_k,d_v,positions,dropout,label_smoothing,max_steps,target_tokens,"
    "vocab_size,parameters,parameters_with_40960_types,paper_parameters,flops_per_target_token,training_flops,"
    "paper_training_flops,paper_perplexity,paper_bleu,seeds,perplexity,perplexity_spread,bleu,bleu_spread,"
    "bleu_signature,sacrebleu,sacrebleu_signature,decoding,sentences,trained_target_tokens,tokens_per_second,"
    "perplexity_minus_base,paper_perplexity_minus_base,bleu_minus_base,paper_bleu_minus_base"
)


@pytest.fixture
def runs(finished_row, planned_run):
    runs = finished_row("base", 5.0, 20.0, 31.0), finished_row("A-h1", 5.5, 18.5, 33.0), planned_run("A-h4")
    return {run.name: [run] for run in runs}


@pytest.fixture
def described(runs) -> list[Description]:
    return [describe_row(ROWS[name], 1.0, run) for name, (run,) in runs.items()]


def test_the_csv_has_every_figure_and_leaves_empty_what_is_not_finished(described, runs, tmp_path):
    write_report(described, runs, tmp_path / "table", "the command")
    with (tmp_path / "table" / "table3.csv").open() as file:
        reader = csv.DictReader(file)
        base, one, four = reader
    assert ",".join(reader.fieldnames) == HEADER
    wanted = {"perplexity": "5.5", "perplexity_minus_base": "0.5", "paper_perplexity_minus_base": "0.37"}
    wanted |= {"bleu": "18.5", "bleu_minus_base": "-1.5", "paper_bleu_minus_base": "-0.9", "sacrebleu": "33.0"}
    wanted |= {"paper_perplexity": "5.29", "paper_bleu": "24.9", "tokens_per_second": "50.0", "heads": "1"}
    assert wanted.items() <= one.items()
    assert (base["perplexity_minus_base"], four["perplexity"], four["perplexity_minus_base"]) == ("0.0", "", "")


def test_the_markdown_names_the_command_the_conditions_and_the_figures(described, runs, tmp_path):
    write_report(described, runs, tmp_path, "the command")
    text = (tmp_path / "table3.md").read_text()
    assert text.startswith("# Table 3\n\n`the command`\n\n2 of 3 rows are finished.\n\nData: grammar, ")
    assert "en to de; validation of 5 sentences. About 25,000 target tokens an update, vocabulary 37,000" in text
    assert "a machine, bf16, torch 2, today." in text
    assert "BLEU is `the paper's`, beam 4, no checkpoints averaged" in text
    assert "| PPL | PPL (paper) | PPL - base | PPL - base (paper) | BLEU | BLEU (paper) | BLEU - base |" in text
    assert "| 5.50 | 5.29 | +0.50 | +0.37 | 18.5 | 24.9 | -1.5 | -0.9 | 50 |" in text
    assert "| heads (A) | BLEU | 1 of 1 |  |" in text


def test_a_report_without_a_finished_run_has_the_papers_figures(described, runs, tmp_path):
    write_report(described[2:], {"A-h4": runs["A-h4"]}, tmp_path, "the command")
    text = (tmp_path / "table3.md").read_text()
    assert "0 of 1 rows are finished.\n\n| row | N |" in text
    assert "| A-h4 | 0.1 | 10 |" in text
    assert "PPL - base |" not in text


def test_tables_leave_out_columns_that_are_empty():
    rows = [{"row": "B-k16", "d_model": 512, "d_ff": 2048, "heads": 8, "d_k": 16, "d_v": 64, "max_steps": 5}]
    rows[0]["paper_parameters"] = None
    first = "row    d_model  d_ff  h  d_k  d_v\nB-k16      512  2048  8   16   64"
    assert tables(rows, align) == f"{first}\n\nrow    updates\nB-k16        5"


def test_the_picture_has_the_paper_above_and_ours_below(described, runs, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", lambda figure, path, **options: figures.append(figure))
    draw(report_rows(described, runs | {"A-h4": []}), tmp_path / "table3.png")
    perplexity, bleu = figures[0].axes
    assert [label.get_text() for label in perplexity.get_yticklabels()] == ["A-h1"]
    assert [bar.get_width() for bar in perplexity.patches] == [0.37, 0.5]
    assert [bar.get_width() for bar in bleu.patches] == [-0.9, -1.5]
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == ["paper", "here"]
    assert "perplexity, difference to base (lower is better)" in perplexity.get_xlabel()
    assert "BLEU, difference to base (higher is better)" in bleu.get_xlabel()


def test_orderings_are_held_against_the_papers():
    def answer(one: float, four: float) -> Ordering:
        figures = {"base": (5.0, 20.0), "A-h1": (one, 19.0), "A-h4": (four, 19.5)}
        found = compare_orderings({name: measurement(*pair) for name, pair in figures.items()})
        return {(ordering.series, ordering.measure): ordering for ordering in found}["heads (A)", "perplexity"]

    four_one, base_one, base_four = "A-h4 before A-h1", "base before A-h1", "base before A-h4"
    assert sorted(answer(one=5.4, four=5.2).agreeing) == [four_one, base_one, base_four]
    found = answer(one=5.2, four=5.4)
    assert (sorted(found.agreeing), found.undecided, found.disagreeing) == ([base_one, base_four], [], [four_one])
    found = answer(one=5.0, four=5.4)
    assert (found.agreeing, found.undecided) == ([base_four], [])
    assert sorted(found.disagreeing) == [four_one, base_one]  # equal is not ordered


def test_lower_is_better_for_perplexity_and_higher_for_bleu():
    found = compare_orderings({"base": measurement(5.0, 20.0), "big": measurement(4.0, 21.0)})
    pair = ["big before base"]
    assert found == [Ordering("base and big", "perplexity", pair), Ordering("base and big", "bleu", pair)]
    found = compare_orderings({"base": measurement(4.0, 21.0), "big": measurement(5.0, 20.0)})
    assert found == [
        Ordering("base and big", "perplexity", disagreeing=pair),
        Ordering("base and big", "bleu", disagreeing=pair),
    ]


def test_pairs_that_are_no_further_apart_than_seeds_are_undecided():
    def answer(**big: float) -> Ordering:
        base = measurement(5.0, 20.0, perplexity_spread=0.1, bleu_spread=0.5)
        found = compare_orderings({"base": base, "big": measurement(**{"perplexity": 4.0, "bleu": 25.0} | big)})
        return found["bleu" in big]

    pair = ["big before base"]
    assert answer(perplexity=4.875).agreeing == answer(bleu=20.75).agreeing == pair
    assert answer(perplexity=5.125).disagreeing == answer(bleu=19.25).disagreeing == pair
    for near in (answer(perplexity=4.9375), answer(perplexity=5.0625), answer(bleu=20.5), answer(bleu=19.5)):
        assert (near.undecided, near.agreeing, near.disagreeing) == (pair, [], [])


def test_the_markdown_of_several_seeds_says_what_may_be_luck(described, runs, finished_row, tmp_path):
    runs["base"].append(finished_row("base-2018", 5.25, 21.0, 32.0))
    write_report(described[:2], {name: runs[name] for name in ("base", "A-h1")}, tmp_path, "the command")
    text = (tmp_path / "table3.md").read_text()
    assert "3 of 3 runs are finished." in text
    assert "vocabulary 37,000, seeds 2017, 2018. Each run had" in text
    assert "PPL and BLEU are means over seeds." in text
    assert "| PPL | PPL, between seeds | PPL (paper) |" in text
    assert "| 5.12 | 0.25 | 4.92 | +0.00 | +0.00 | 20.5 | 1.0 | 25.8 |" in text
    assert "Seeds of one row are up to 0.25 in perplexity and 1.0 BLEU apart." in text
    assert "| heads (A) | perplexity | 1 of 1 | base before A-h1 |  |  |" in text


def test_rows_that_the_paper_prints_as_equal_are_not_compared():
    found = compare_orderings({"base": measurement(5.0, 20.0), "E-learned": measurement(4.0, 21.0)})
    assert found == [Ordering("positions (E)", "bleu", disagreeing=["base before E-learned"])]


def measurement(
    perplexity: float, bleu: float, perplexity_spread: float | None = None, bleu_spread: float | None = None
) -> Measurement:
    seeds = 1 if bleu_spread is None else 2
    scores = perplexity, perplexity_spread, bleu, bleu_spread
    return Measurement(seeds, *scores, "x", 100 - bleu, "y", "beam 4", 5, 100, 50.0)
