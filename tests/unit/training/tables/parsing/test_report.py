import csv
import dataclasses

import pytest
from matplotlib.figure import Figure

from training.tables.parsing.report import Result, draw, write_report
from training.tables.parsing.rows import Row
from vaswani.parsing.scores import GROUPS
from vaswani.results import ParsingEvaluation


def evaluation(f1: float, well_formed: float | None = None) -> ParsingEvaluation:
    """Return scores of which no two are equal."""
    groups = {name: {"sentences": 10 + place, "bracketing_f1": f1 - place} for place, name in enumerate(GROUPS)}
    scores = {
        "bracketing_recall": f1 + 1,
        "bracketing_precision": f1 + 2,
        "exact_match": f1 + 3,
        "no_crossing": f1 + 5,
    }
    scores |= {"tagging_accuracy": f1 + 6, "average_crossing": f1 + 4, "two_or_less_crossing": f1 + 7}
    return ParsingEvaluation(
        split="test", sentences=60, evalb_errors=2, bracketing_f1=f1, well_formed=well_formed,
        bracketing_f1_by_length=groups, **scores,
    )  # fmt: skip


@pytest.fixture
def results() -> list[Result]:
    half, whole, plain = Row(0.5), Row(1.0), Row(1.0, is_plain=True)
    return [
        Result("PCFG", "", 100, evaluation(60.25)),
        Result(half.name, "free", 50, evaluation(30.5, 88.0), 12.4, half),
        Result(half.name, "trees only", 50, evaluation(31.5, 100.0), 12.4, half),
        Result(whole.name, "free", 100, evaluation(40.5, 90.0), 13.6, whole),
        Result(plain.name, "trees, known tags", 100, evaluation(50.5, 91.0), 14.6, plain),
    ]


def test_the_table_has_every_score_in_its_column(results, tmp_path):
    write_report(results, "Conditions.", "python training/table4.py --x", tmp_path)
    text = (tmp_path / "table4.md").read_text()
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    titles, rows = lines[0], {(line[0], line[1]): line for line in lines[2:7]}
    row = dict(zip(titles, rows["50%", "free"], strict=True))
    expected = {"trees": "50", "training seconds": "12", "F1": "30.50", "recall": "31.50", "precision": "32.50"}
    expected |= {"exact": "33.50", "crossing": "34.50", "tags": "36.50", "well-formed": "88.00", "errors": "2"}
    assert {name: row[name] for name in expected} == expected
    floor = dict(zip(titles, rows["PCFG", ""], strict=True))
    assert (floor["F1"], floor["well-formed"], floor["training seconds"]) == ("60.25", "", "")
    assert "| trained on | search | 1-10 (10) | 11-20 (11) |" in text
    assert "| 100%, nothing made of them | trees, known tags | 50.5 | 49.5 | 48.5 |" in text
    assert "| Transformer (4 layers) | semi-supervised | 92.7 |" in text
    for part in ("`python training/table4.py --x`", "Conditions."):
        assert part in text


@pytest.mark.parametrize("split", ["test", "validation"])
def test_it_says_on_which_split_the_parsers_are_scored(results, tmp_path, split):
    of_split = [
        dataclasses.replace(each, evaluation=dataclasses.replace(each.evaluation, split=split)) for each in results
    ]
    write_report(of_split, "", "", tmp_path)
    assert f"## Scores on the {split} split\n" in (tmp_path / "table4.md").read_text()


def test_the_figures_stand_in_csv_and_a_picture_too(results, tmp_path):
    write_report(results, "", "", tmp_path)
    with (tmp_path / "table4.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["bracketing_f1"] for row in rows] == ["60.25", "30.5", "31.5", "40.5", "50.5"]
    assert (rows[1]["well_formed"], rows[2]["search"]) == ("88.0", "trees only")
    assert (tmp_path / "table4.png").stat().st_size > 10_000


def test_lines_are_told_apart_without_colours(results, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: figures.append(figure))
    draw(results, tmp_path / "table4.png")
    for axes in figures[0].axes:
        lines = axes.get_lines()
        assert len({(line.get_linestyle(), line.get_marker(), line.get_fillstyle()) for line in lines}) == len(lines)
    over_trees, over_length = (
        {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()} for axes in figures[0].axes
    )
    assert over_trees["Transformer, free"] == [[50, 30.5], [100, 40.5]]
    assert over_length["Transformer, free"][0] == [0, 40.5]  # with all trees
    labels = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert labels == [
        "PCFG",
        "Transformer, free",
        "Transformer, trees only",
        "Transformer, trees, known tags, nothing made of the trees",
    ]


def test_floors_alone_are_a_table_too(results, tmp_path):
    write_report(results[:1], "", "", tmp_path)
    assert "| PCFG |  | 100 |  | 60.25 |" in (tmp_path / "table4.md").read_text()
    write_report([], "", "", tmp_path)
    assert "F1, section 23" in (tmp_path / "table4.md").read_text()


def test_results_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Result("PCFG", "", 1, evaluation(1.0)).trees = 2  # ty: ignore[invalid-assignment]
