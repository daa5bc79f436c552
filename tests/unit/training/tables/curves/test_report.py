import csv

from training.tables.curves.report import write_report


def test_the_report_has_the_models_their_way_and_what_it_costs(points, tmp_path):
    write_report(points, "On a machine.", "python training/curves.py", tmp_path)
    text = (tmp_path / "curves.md").read_text()
    for part in (
        "`python training/curves.py`",
        "On a machine.",
        "| small | 100 | 250 | 0.0 | 2.0 | 1.0e+12 | 20.50 | 20.00 | 40.00 |",
        "| large | 400 | 1,000 | 0.0 | 2.0 | 1.0e+12 | 28.50 | 28.00 | 48.00 |",
        "| small | 1,000 | 18.00 | 22.00 | 24.00 | 24.00 |",
        "| training pairs | BLEU | +3.00 | +2.00 | 1.4 times as many |",
        "| parameters, all text | chrF | +1.00 | +1.00 | 2 times as many |",
    ):
        assert part in text
    rows = list(csv.DictReader((tmp_path / "curves.csv").open()))
    assert len(rows) == 4 * (3 + 2)
    assert {row["split"] for row in rows} == {"validation", "test"}
    assert [row["sacrebleu"] for row in rows if row["model"] == "large" and row["split"] == "test"] == ["28.0"]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_before_any_run_has_finished_there_are_conditions_only(tmp_path):
    write_report([], "On a machine.", "python training/curves.py", tmp_path)
    assert (tmp_path / "curves.md").read_text().endswith("On a machine.\n")
    assert not (tmp_path / "curves.png").exists()
