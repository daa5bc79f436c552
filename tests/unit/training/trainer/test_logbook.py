"""What a run writes down and shows."""

import dataclasses
import json
import os
import re
import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from accelerate import Accelerator
from datasets import Dataset
from flat_settings import make_settings

from training.data.loader import plan_updates
from training.data.preparation import Prepared
from training.trainer.logbook import (
    Logbook,
    as_time,
    describe_training,
)
from training.trainer.run_directory import check_output_dir
from vaswani.errors import UserError


ROW = {"step": 1, "loss": 2.5, "nll": 2.25, "learning_rate": 1e-3, "target_tokens_per_second": 1234.5}


@pytest.fixture
def make(tmp_path):
    def make(**settings):
        given = {"dataset_name": "x", "source_lang": "en", "target_lang": "de", "max_steps": 9}
        return Logbook(tmp_path, Accelerator(cpu=True), make_settings(**given | settings), {"base_model": "me/base"})

    return make


def rows(logbook):
    return [json.loads(line) for line in logbook.path.read_text().splitlines()]


def test_a_new_run_removes_the_run_before_and_a_resumed_one_keeps_it(make, tmp_path):
    first = make()
    first.log(ROW)
    for name in ("checkpoints", "model", "outputs", "report", "space"):
        (tmp_path / name / "old").mkdir(parents=True)
    (tmp_path / "report.html").touch()
    make(resume_from_checkpoint="latest")
    assert rows(first) == [ROW]
    assert (tmp_path / "checkpoints" / "old").exists()
    make()
    assert rows(first) == []
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "metrics.jsonl", "recipe.toml"}
    assert not (tmp_path / "checkpoints" / "old").exists()


def test_the_recipe_says_what_the_run_depends_on(make, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["training/run.py", "--output_dir", "my runs"])
    make(seed=5)
    recipe = tomllib.loads((tmp_path / "recipe.toml").read_text())
    assert (recipe["seed"], recipe["max_steps"], recipe["run"]["base_model"]) == (5, 9, "me/base")
    assert recipe["run"]["command"] == "training/run.py --output_dir 'my runs'"
    assert recipe["run"].keys() >= {"date", "commit", "torch", "processes", "precision", "hardware"}


def test_a_recipe_stays_as_it_is_until_a_checkpoint_is_resumed(make, tmp_path):
    make(seed=5)
    resumed = make(seed=6, resume_from_checkpoint="latest")
    assert tomllib.loads((tmp_path / "recipe.toml").read_text())["seed"] == 5
    resumed.rewind(0, [])
    assert tomllib.loads((tmp_path / "recipe.toml").read_text())["seed"] == 6


def test_of_the_evaluations_at_a_checkpoint_only_the_one_on_the_way_is_known(make):
    logbook = make()
    logbook.log(ROW | {"step": 4})
    for split, nll in (("validation", 1.0), ("validation", 2.0), ("test", 3.0)):
        logbook.log({"step": 4, "split": split, "nll": nll})
    logbook.rewind(4, [4])
    assert [row["nll"] for row in rows(logbook)] == [2.25, 1.0]


@pytest.mark.parametrize(("evaluated", "kept"), [([2, 4], [1, 2, 2, 3, 4, 4]), ([2], [1, 2, 2, 3, 4])])
def test_rewinding_forgets_all_that_will_be_done_again(make, evaluated, kept):
    logbook = make()
    for step in range(1, 7):
        logbook.log(ROW | {"step": step})
        if step % 2 == 0:
            logbook.log({"step": step, "split": "validation", "nll": 1.0})
    with logbook.path.open("a") as file:
        file.write('{"step": 7, "lo')  # killed while it wrote
    logbook.rewind(4, evaluated)
    assert [row["step"] for row in rows(logbook)] == kept
    assert logbook.progress.n == 4


def test_rewinding_keeps_what_was_recorded_of_checkpoints_since(make):
    logbook = make()
    logbook.log({"step": 4, "split": "validation", "nll": 1.0})
    with logbook.path.open("a") as file:
        file.write('{"step": 7, "lo\n')  # killed while it wrote
    for step in (3, 4, 5):
        logbook.log({"step": step, "split": "test", "test_set": "mine", "nll": 1.0})
    logbook.rewind(4, [4])
    assert [(row["step"], row.get("test_set")) for row in rows(logbook)] == [(4, None), (3, "mine"), (4, "mine")]


def test_rewinding_forgets_what_was_translated_later(make, tmp_path):
    logbook = make()
    for name in ("step-0000002", "step-0000004", "step-0000006", "final"):
        logbook.keep("validation", name, ["one"], ["eins"], [name])
    logbook.rewind(4, [2, 4])
    found = sorted(path.name for path in (tmp_path / "outputs").iterdir())
    kept = ("reference", "source", "step-0000002", "step-0000004")
    assert found == [f"validation.{name}.txt" for name in kept]


def test_a_full_disk_leaves_metrics_and_recipe_as_they_are(make, write_half, tmp_path, monkeypatch):
    logbook = make(seed=5)
    for step in range(1, 7):
        logbook.log(ROW | {"step": step})
    resumed, before = make(seed=6, resume_from_checkpoint="latest"), rows(logbook)
    monkeypatch.setattr(Path, "write_text", write_half)
    for name, write in (
        ("metrics.jsonl", lambda: resumed.rewind(4, [])),
        ("recipe.toml", resumed.keep_recipe),
        ("lengths.json", lambda: resumed.keep_lengths(source=[1])),
        ("outputs/test.source.txt", lambda: resumed.keep("test", "final", ["one"], ["eins"], ["1"])),
    ):
        with pytest.raises(UserError, match=f"^{tmp_path / name} could not be written: the disk is full; make room"):
            write()
    assert rows(logbook) == before
    assert tomllib.loads((tmp_path / "recipe.toml").read_text())["seed"] == 5


def test_a_run_that_was_ended_before_its_recipe_was_written_may_begin_again(make, tmp_path, monkeypatch):
    def end(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("training.trainer.logbook.describe_run", end)
    with pytest.raises(KeyboardInterrupt):
        make()
    check_output_dir(make_settings(dataset_name="x", source_lang="en", target_lang="de", output_dir=str(tmp_path)))


def test_a_disk_that_fills_up_while_metrics_grow_is_a_sentence(make):
    logbook = make()
    logbook.path.unlink()
    logbook.path.symlink_to("/dev/full")
    with pytest.raises(
        UserError,
        match=r"metrics\.jsonl could not be written: No space left on device; make room, then resume: .* checkpoint$",
    ):
        logbook.log(ROW)


def test_samples_are_one_block_beside_their_references(make, evaluation, monkeypatch):
    logbook, written = make(), []
    monkeypatch.setattr(logbook.progress, "write", written.append)
    text = [[f"{side}{number}" for number in range(10)] for side in "srt"]
    logbook.show(dataclasses.replace(evaluation, seconds=3.0), *text, samples=2)
    (block,) = written  # so that the progress bar is drawn anew once
    assert block.splitlines()[2:] == [
        "  source     s0", "  model      t0", "  reference  r0", "",
        "  source     s5", "  model      t5", "  reference  r5",
    ]  # fmt: skip
    logbook.show(dataclasses.replace(evaluation, seconds=3.0), *text, samples=4)  # which divide no ten
    assert written[1].count("source") == 4


def test_a_row_reaches_the_trackers_under_its_step(make, evaluation, monkeypatch):
    logbook, tracked = make(), []
    monkeypatch.setattr(logbook.accelerator, "log", lambda values, step: tracked.append((step, values)))
    logbook.log(evaluation.to_row())
    [(step, values)] = tracked
    assert (step, values["test/sacrebleu"]) == (500, evaluation.sacrebleu)
    assert "test/decoding" not in values  # of which a tracker draws no curve


def test_it_is_noted_how_many_sentences_have_each_length(make, tmp_path):
    make().keep_lengths(source=[2, 2, 4], target=[1])
    assert json.loads((tmp_path / "lengths.json").read_text()) == {"source": [0, 0, 2, 0, 1], "target": [0, 1]}


def test_outputs_are_kept_a_sentence_a_line_beside_sources_and_references(make, tmp_path):
    logbook = make()
    logbook.keep("test", "step-0000005", ["eins", "zwei\ndrei", ""], ["one", "two\nthree", "x"], ["One.", "", "a\nb"])
    logbook.keep("test", "final", ["eins", "zwei\ndrei", ""], ["one", "two\nthree", "x"], ["ä\u2028", "2", "3"])
    assert {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "outputs").iterdir()} == {
        "test.source.txt": "eins\nzwei drei\n\n",
        "test.reference.txt": "one\ntwo three\nx\n",
        "test.step-0000005.txt": "One.\n\na b\n",
        "test.final.txt": "ä\u2028\n2\n3\n",
    }


def test_outputs_that_somebody_reads_are_whole(make, tmp_path, monkeypatch):
    logbook = make()
    logbook.keep("test", "final", ["eins"], ["one"], ["1"])

    seen = []

    def look(unfinished, path):
        seen.append(path.read_text())
        shutil.move(unfinished, path)

    monkeypatch.setattr(os, "replace", look)
    logbook.keep("test", "final", ["zwei"], ["two"], ["2"])
    assert seen == ["eins\n", "one\n", "1\n"]
    assert (tmp_path / "outputs" / "test.final.txt").read_text() == "2\n"


@pytest.fixture
def described():
    """Return a function that says what a run with these settings will do, and the lengths of its 3,000 pairs."""
    source = np.random.default_rng(1).integers(3, 30, 3000, dtype=np.int32)
    sides = {"source_length": source, "target_length": 2 * source}
    config = SimpleNamespace(model_type="vaswani", d_model=512)
    model = SimpleNamespace(config=config, num_parameters=lambda: 63_082_496)

    def describe(**given):
        settings = make_settings(**{"source_lang": "en", "target_lang": "de", "output_dir": "runs/mine"} | given)
        splits = {"train": [], "validation": [], "test": []}
        prepared = Prepared(splits, None, {"train": Dataset.from_dict(sides)}, {})
        return describe_training(settings, model, prepared, Accelerator(cpu=True)), settings

    return describe, tuple(sides.values())


def test_a_run_says_what_it_will_do(described):
    text, _ = described[0](max_steps=2000, max_tokens_per_batch=1000, eval_steps=500, save_steps=250)
    epochs = 2000 * 1000 / described[1][1].sum()
    assert text.splitlines() == [
        "Learns to translate from en to de: vaswani model, 63,082,496 parameters, d_model 512",
        f"Trains for 2,000 updates of about 1,000 target tokens, 2,000,000 in all ({epochs:.3g} epochs)",
        "Evaluates on validation every 500 updates, and on validation and test at the end; "
        "saves a checkpoint every 250 updates",
        "1 process(es) on cpu, precision no; writes to runs/mine",
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"target_lang": "tree"}, "Learns to parse en: vaswani model"),
        ({"max_time": 90.0}, "epochs); ends after 1 h 30 min (max_time), to be resumed"),
        ({"early_stopping_patience": 3}, "Trains for at most 100,000 updates of about 24,000 target tokens"),
        (
            {"length_groups": 8, "max_tokens_per_batch": 300},
            " target tokens in 5 groups, not length_groups=8, since each must have room for 58, ",
        ),
        ({"eval_steps": 0}, "Evaluates on validation and test at the end; "),
        ({"eval_steps": 60, "max_steps": 60}, "Evaluates on validation and test at the end; "),
        ({"save_minutes": 10.0}, "saves a checkpoint every 10 minutes"),
        ({"save_steps": 0}, "saves no checkpoints, unless it is interrupted"),
        ({"save_steps": 0, "early_stopping_patience": 2}, "saves the best checkpoint so far"),
        ({"early_stopping_patience": 2}, "saves a checkpoint every 1,500 updates, and the best one so far"),
        ({"output_dir": "runs/other"}, "; writes to runs/other"),
    ],
)
def test_what_a_run_says_follows_its_settings(described, given, said):
    assert said in described[0](**given)[0]


@pytest.mark.parametrize("tokens", [1000, 5000, 75_000, 1_000_000])  # of some 96,000
def test_the_tokens_of_an_update_that_a_run_says_are_about_those_that_are_planned(described, tokens):
    describe, sides = described
    text, settings = describe(max_tokens_per_batch=tokens)
    planned = plan_updates(sides, settings.optimization, 0, 1)
    first = next(planned)
    mean = np.mean([first.target_tokens, *(next(planned).target_tokens for _ in range(first.epoch_length - 1))])
    (said,) = re.findall(r"of about ([0-9,]+) target tokens", text)
    assert int(said.replace(",", "")) == pytest.approx(mean, rel=0.1)


def test_times_are_written_as_people_say_them():
    assert [as_time(seconds) for seconds in (0.4, 61, 3599.6, 3 * 3600 + 120)] == [
        "0 min 00 s",
        "1 min 01 s",
        "1 h 00 min",
        "3 h 02 min",
    ]
