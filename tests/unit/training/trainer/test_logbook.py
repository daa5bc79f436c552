"""What a run writes down and shows."""

import dataclasses
import json
import tomllib

import pytest
from accelerate import Accelerator
from flat_settings import make_settings

from training.trainer.logbook import Logbook, describe_evaluation, final_evaluation, logged_rows, read_metrics


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
    for name in ("checkpoints", "model", "outputs"):
        (tmp_path / name / "old").mkdir(parents=True)
    make(resume_from_checkpoint="latest")
    assert rows(first) == [ROW]
    assert (tmp_path / "checkpoints" / "old").exists()
    make()
    assert rows(first) == []
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["checkpoints"]
    assert not (tmp_path / "checkpoints" / "old").exists()


def test_the_recipe_says_what_the_run_depends_on(make, tmp_path):
    make(seed=5)
    recipe = tomllib.loads((tmp_path / "recipe.toml").read_text())
    assert (recipe["seed"], recipe["max_steps"], recipe["run"]["base_model"]) == (5, 9, "me/base")
    assert recipe["run"].keys() >= {"command", "date", "commit", "torch", "processes", "precision", "hardware"}


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


def test_samples_are_one_block_beside_their_references(make, evaluation, capsys, monkeypatch):
    logbook, written = make(), []
    monkeypatch.setattr(logbook.progress, "write", written.append)
    text = [[f"{side}{number}" for number in range(10)] for side in "srt"]
    logbook.show(dataclasses.replace(evaluation, seconds=3.0), *text, samples=2)
    (block,) = written  # so that the progress bar is drawn anew once
    assert block.splitlines()[2:] == [
        "  source     s0", "  model      t0", "  reference  r0", "",
        "  source     s5", "  model      t5", "  reference  r5",
    ]  # fmt: skip


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


def test_a_line_says_what_was_evaluated_and_how(evaluation):
    line = describe_evaluation(dataclasses.replace(evaluation, seconds=3.0, truncated_sources=2))
    assert line == (
        "test at step 500: sacreBLEU 20.10 (lowercased 21.20), chrF 52.30, BLEU by the paper's protocol 23.40, "
        "exact 6.6%, nll 1.250, 1,234 sentences in 3 s, beam 4, alpha 0.6, "
        "4 checkpoints averaged, 2 translated up to max_source_length"
    )
    short = describe_evaluation(dataclasses.replace(evaluation, seconds=3.0, averaged_checkpoints=1, paper_bleu=None))
    assert short.endswith("exact 6.6%, nll 1.250, 1,234 sentences in 3 s, beam 4, alpha 0.6")


def test_rows_are_read_but_for_one_that_is_not_whole_yet(tmp_path):
    assert read_metrics(tmp_path) == []
    rows = [
        '{"step": 1, "target_tokens_per_second": 5}',
        '{"step": 1, "split": "test"}',
        '{"step": 2, "split": "test"}',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*rows, '{"step": 3, "sp']))
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 1, 2]
    assert [row["step"] for row in logged_rows(tmp_path)] == [1]
    assert final_evaluation(tmp_path, "test") == {"step": 2, "split": "test"}
