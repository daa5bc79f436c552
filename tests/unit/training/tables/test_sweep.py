import pytest

from training.tables.rows import ROWS
from training.tables.sweep import Run, run_all
from vaswani.errors import UserError


def test_a_directory_of_another_recipe_is_refused(finished_row):
    run = finished_row("base", 5.0, 20.0, 30.0)
    with pytest.raises(UserError, match=r"holds a run of another recipe .*vocab_size is 9 there, 37000 here"):
        run.check()


def test_finished_runs_are_not_started_again(finished_row):
    runs = [finished_row("base", 5.0, 20.0, 30.0)]
    run_all(runs, 1, when_done=lambda run: pytest.fail("it was run"))
    assert runs[0].process is None


def test_a_run_that_fails_is_named_with_its_last_words_and_the_others_go_on(tmp_path):
    runs = []
    for name in ("base", "A-h1"):
        flags = [
            "--dataset_name=grammar",
            "--source_lang=en",
            "--target_lang=de",
            f"--output_dir={tmp_path / name}",
            "--config_name=/nowhere",
        ]
        runs.append(Run(name, [*ROWS[name].arguments(), *flags], ROWS[name].settings(*flags), cost=1.0))
    done = []
    with pytest.raises(UserError, match=r"(?s)2 of 2 failed.*base: error: config_name='/nowhere' must be"):
        run_all(runs, 2, lambda run: done.append(run.name))
    assert sorted(done) == ["A-h1", "base"]
    assert "config_name" in (tmp_path / "base.log").read_text()
