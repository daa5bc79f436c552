import dataclasses
import io
import os
import signal
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from tqdm import tqdm

from training.tables import sweep
from training.tables.rows import ROWS
from training.tables.sweep import Run, run_all, run_and_report, show_progress
from vaswani.cli import exit_status
from vaswani.errors import UserError


def test_a_directory_of_another_recipe_is_refused(finished_row):
    run = finished_row("base", 5.0, 20.0, 30.0)
    with pytest.raises(UserError, match=r"holds a run of another recipe .*vocab_size is 9 there, 37000 here"):
        run.check()


def test_one_name_on_the_hub_for_all_runs_is_refused(planned_run):
    run = planned_run("base")
    run.check()
    run.settings.reporting.hub_model_id = "me/mine"
    with pytest.raises(UserError, match=r"^hub_model_id='me/mine' must be left out, as by --hub_model_id none: each"):
        run.check()


def test_a_run_says_what_it_trains_on(planned_run):
    data = planned_run("base").settings.data
    run = planned_run("A-h1")
    assert run.text_name == "grammar"
    run.settings.data = dataclasses.replace(data, dataset_name="my/multi30k", dataset_config_name="en-de")
    assert run.text_name == "multi30k en-de"
    run.settings.data = dataclasses.replace(data, dataset_name=None, train_file=["my/train.en", "my/train.de"])
    assert run.text_name == "train.en, train.de"


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


def test_the_results_of_others_are_told_and_what_failed_is_an_error(planned_run, finished_row, monkeypatch, capsys):
    def go(run, environment):
        if run.name == "base":
            finished_row("base", 5.0, 20.0, 30.0)
        else:
            run.error = "it had no luck"

    monkeypatch.setattr(Run, "go", go)
    reports = []
    with pytest.raises(UserError, match=r"^1 of 2 failed; .*\nA-h1: it had no luck \(more in "):
        run_and_report(
            [planned_run("A-h1"), planned_run("base")],
            1,
            lambda run: f"all about {run.name}",
            lambda: reports.append(1),
        )
    assert capsys.readouterr().out == "\nbase: all about base\n"
    assert len(reports) == 3


def test_a_signal_ends_a_sweep_as_it_ends_every_command_once_all_is_saved(planned_run, monkeypatch, capsys):
    def go(run, environment):
        time.sleep(0.5)  # until the sweep waits for it
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
        print(f"{run.name} has saved", file=sys.stderr)

    monkeypatch.setattr(Run, "go", go)
    runs = [planned_run("base"), planned_run("A-h1")]
    assert exit_status(lambda: run_all(runs, 1, when_done=lambda run: None)) == 128 + signal.SIGTERM
    said = capsys.readouterr().err
    assert "A-h1 has saved" not in said
    assert said.index("base has saved") < said.index("the same command resumes") < said.index("Ended (SIGTERM)")


def test_progress_is_the_share_of_the_updates_that_are_logged(planned_run, finished_row):
    run = planned_run("A-h1")
    assert run.share_done() == 0.0
    run.directory.mkdir()
    (run.directory / "metrics.jsonl").write_text('{"step": 2}\n{"step": 4}\n{"step": 3}\n{"step": 9')
    assert run.share_done() == 0.4  # of 10; the last line is torn
    (run.directory / "model").mkdir()
    for name in ("recipe.toml", "model/recipe.toml", "model/README.md"):
        (run.directory / name).touch()
    assert run.share_done() == 1.0  # it stopped early
    assert finished_row("base", 5.0, 20.0, 30.0).share_done() == 1.0
    (run.directory / "recipe.toml").write_text("max_steps = 10")  # it was extended since
    assert run.share_done() == 0.4


def test_what_a_killed_run_repeats_does_not_count_as_a_negative_rate(planned_run):
    run = planned_run("A-h1")
    run.directory.mkdir()
    with tqdm(total=1.0, initial=0.5, file=io.StringIO()) as progress:
        for step, initial in ((4, 0.4), (7, 0.4)):
            (run.directory / "metrics.jsonl").write_text(f'{{"step": {step}}}\n')
            show_progress(progress, [run])
            assert (progress.n, progress.initial) == (step / 10, initial)


def test_the_costliest_runs_go_first_where_several_share_the_machine(planned_run, monkeypatch):
    order, runs = [], [planned_run(name) for name in ("A-h1", "big", "base")]
    for run, cost in zip(runs, (2.0, 9.0, 5.0), strict=True):
        run.cost = cost
    monkeypatch.setattr(Run, "go", lambda run, environment: order.append(run.name))
    monkeypatch.setattr(sweep, "place", lambda number, jobs: {})
    run_all(runs, 1, lambda run: None)
    assert order == ["A-h1", "big", "base"]
    order.clear()
    monkeypatch.setattr(sweep, "ThreadPoolExecutor", lambda jobs: ThreadPoolExecutor(1))  # one after the other
    run_all(runs, 2, lambda run: None)
    assert order == ["big", "base", "A-h1"]


def test_a_job_that_comes_too_late_for_the_last_run_ends(planned_run, monkeypatch):
    class Queue(deque):
        """Seems to hold a run that another job takes before this one can."""

        def __bool__(self) -> bool:
            return True

    monkeypatch.setattr(sweep, "deque", lambda runs=(): Queue(runs) if runs else deque())
    monkeypatch.setattr(sweep, "place", lambda number, jobs: {})
    monkeypatch.setattr(Run, "go", lambda run, environment: None)
    done = []
    run_all([planned_run("base")], 2, lambda run: done.append(run.name))
    assert done == ["base"]


def test_each_job_has_its_share_of_the_cores(monkeypatch):
    given = []
    monkeypatch.setattr(sweep.torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(sweep.os, "sched_getaffinity", lambda process: {2, 3, 5, 7, 11}, raising=False)
    monkeypatch.setattr(sweep.os, "sched_setaffinity", lambda process, cores: given.append(cores), raising=False)
    for number in range(2):
        sweep.place(number, 2)
    assert given == [[2, 5, 11], [3, 7]]
    sweep.place(0, 1)
    assert len(given) == 2  # a single job has them all


@pytest.mark.parametrize(("has_begun", "resumes"), [(False, []), (True, ["--resume_from_checkpoint=latest"])])
def test_a_run_that_ended_without_a_model_was_asked_to(planned_run, monkeypatch, has_begun, resumes):
    run, commands = planned_run("A-h1"), []
    run.log.write_text("what it said before\n")
    if has_begun:
        run.directory.mkdir()
        (run.directory / "recipe.toml").touch()

    def start(command, **options):
        commands.append(command)
        assert options["env"] == {"CUDA_VISIBLE_DEVICES": "1"}
        return SimpleNamespace(wait=lambda: 0)

    monkeypatch.setattr(sweep.subprocess, "Popen", start)
    run.go({"CUDA_VISIBLE_DEVICES": "1"})
    assert run.error == "it was asked to end"
    assert [command[2:] for command in commands] == [resumes]
    assert run.log.read_text() == "what it said before\n"


def test_each_job_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(sweep.torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert [sweep.place(number, 3)["CUDA_VISIBLE_DEVICES"] for number in range(3)] == ["4", "6", "4"]
