import csv
from dataclasses import replace

from matplotlib.figure import Figure

from training.tables.curves.report import draw, write_report


def test_the_report_has_the_models_their_way_and_what_it_costs(points, tmp_path):
    points[0] = replace(points[0], target_tokens=2_500_000)
    points[3] = replace(points[3], test=points[3].test | {"sacrebleu": 26.1})
    write_report(points, "On a machine.", "python training/curves.py", tmp_path)
    text = (tmp_path / "curves.md").read_text()
    for part in (
        "`python training/curves.py`",
        "On a machine.",
        "| small | 100 | 250 | 2.5 | 2.0 | 1.0e+12 | 20.50 | 20.00 | 40.00 |",
        "| large | 400 | 1,000 | 0.0 | 2.0 | 1.0e+12 | 28.50 | 26.10 | 48.00 |",
        "| small | 1,000 | 18.00 | 22.00 | 24.00 | 24.00 |",
        "| training pairs | BLEU | +3.00 | +2.00 | 1.4 times as many |",
        "| parameters, all text | BLEU | +0.05 | +0.05 | not in sight |",
        "| parameters, all text | chrF | +1.00 | +1.00 | 2 times as many |",
    ):
        assert part in text
    rows = list(csv.DictReader((tmp_path / "curves.csv").open()))
    assert len(rows) == 4 * (3 + 2)
    assert {row["split"] for row in rows} == {"validation", "test"}
    assert [row["sacrebleu"] for row in rows if row["model"] == "large" and row["split"] == "test"] == ["26.1"]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_is_over_tokens_over_text_and_over_size(points, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: figures.append(figure))
    draw(points[::-1], tmp_path / "curves.png")  # the first one is large
    draw(points, tmp_path / "curves.png")
    on_the_way, by_text, by_size = (
        [line.get_xydata().tolist() for line in axes.get_lines()] for axes in figures[1].axes
    )
    assert on_the_way[0] == [[1, 12], [2, 16], [4, 18]]
    assert by_text == [[[250, 20.5], [500, 24.5], [1000, 26.5]], [[250, 20], [500, 24], [1000, 26]]]
    assert by_size == [[[100, 26.5], [400, 28.5]], [[100, 26], [400, 28]]]
    assert figures[0].axes[1].get_lines()[0].get_xydata().tolist() == [[1000, 28.5]]


def test_before_any_run_has_finished_there_are_conditions_only(tmp_path):
    write_report([], "On a machine.", "python training/curves.py", tmp_path)
    assert (tmp_path / "curves.md").read_text().endswith("On a machine.\n")
    assert not (tmp_path / "curves.png").exists()
