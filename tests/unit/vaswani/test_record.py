import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from vaswani.card import END_OF_TABLE
from vaswani.errors import UserError
from vaswani.record import describe_weights, metrics_of, record


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    for name in ("model", "checkpoints/step-0000500"):
        (folder / name).mkdir(parents=True)
    (folder / "recipe.toml").touch()
    rows = [{"step": 500, "loss": 2.0}, {"step": 600, "split": "test", "averaged_checkpoints": 3, "nll": 1.0}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_weights_are_those_that_the_run_published_last(run):
    expected = {"step": 600, "averaged_checkpoints": 3, "checkpoint": "model"}
    assert describe_weights(str(run / "model")) == expected
    checkpoint = {"step": 500, "averaged_checkpoints": 1, "checkpoint": "step-0000500"}
    assert describe_weights(str(run / "checkpoints" / "step-0000500")) == checkpoint
    unknown = {"step": None, "averaged_checkpoints": None, "checkpoint": "some/model"}
    assert describe_weights("some/model") == unknown


def test_what_was_evaluated_later_tells_nothing_of_the_weights(run):
    later = {"step": 500, "averaged_checkpoints": 1, "split": "test", "test_set": "mini.de"}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(later) + "\n")
    assert describe_weights(str(run / "model"))["step"] == 600


def test_only_the_name_of_a_checkpoint_tells_its_step(run):
    for name in ("step-by-step", "step-", "step-500th"):
        (run / name).mkdir()
        assert describe_weights(str(run / name)) == {"step": 600, "averaged_checkpoints": 3, "checkpoint": name}
    noted = {"step": 500, "averaged_checkpoints": 1, "checkpoint": "step-0000500-best"}
    assert describe_weights("checkpoints/step-0000500-best") == noted


def test_the_folder_that_one_is_in_has_its_name_too(run, monkeypatch):
    for name in ("model", "checkpoints/step-0000500"):
        monkeypatch.chdir(run / name)
        assert describe_weights(".") == describe_weights(str(run / name))


@pytest.mark.parametrize("rest", [b'{"step": 700, "spl', b"7\n", b"\xff\n", b"\n"])
def test_lines_of_metrics_that_are_not_whole_are_left_out(rest, evaluation, run):
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(rest)
    assert describe_weights(str(run / "model"))["step"] == 600
    record(evaluation, str(run / "model"))
    lines = (run / "metrics.jsonl").read_bytes().splitlines()
    assert (lines[2], json.loads(lines[3])) == (rest.removesuffix(b"\n"), evaluation.to_row())


def test_a_row_goes_to_the_run_of_its_model_or_checkpoint(evaluation, run):
    for folder in (run / "model", run / "checkpoints" / "step-0000500"):
        assert metrics_of(folder) == run / "metrics.jsonl"
        assert record(evaluation, str(folder)) == f"Recorded in {run / 'metrics.jsonl'}"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows[2:] == [evaluation.to_row()] * 2


def test_metrics_beside_a_model_that_are_no_runs_are_left_alone(run):
    (run / "recipe.toml").unlink()
    assert metrics_of(run / "model") == run / "model" / "metrics.jsonl"


def test_a_folder_by_itself_has_its_own_metrics_and_a_hub_id_none(evaluation, tmp_path):
    assert record(evaluation, str(tmp_path)) == f"Recorded in {tmp_path / 'metrics.jsonl'}"
    assert record(evaluation, "some/model") == "Not recorded: some/model is no folder."
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").mkdir()
    assert describe_weights(str(tmp_path))["step"] is None
    with pytest.raises(UserError, match=r"^the evaluation cannot be recorded in .*metrics\.jsonl: Is a directory \("):
        record(evaluation, str(tmp_path))


@pytest.mark.parametrize("content", [b"# Sch\xf6n\n", b"---\n- a list\n---\n", b"---\n{\n---\n", None])
def test_a_card_that_cannot_be_read_is_said_and_stays_as_it_is(content, evaluation, tmp_path):
    card = tmp_path / "README.md"
    card.mkdir() if content is None else card.write_bytes(content)
    with pytest.raises(UserError, match=r"^the evaluation is recorded in .*metrics\.jsonl, but cannot be in .*README"):
        record(evaluation, str(tmp_path))
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == evaluation.to_row()
    assert content is None or card.read_bytes() == content


def test_evaluations_at_the_same_time_are_all_recorded(evaluation, tmp_path):
    (tmp_path / "README.md").write_text(f"---\nlanguage: de\n---\n{END_OF_TABLE}\n")
    names = [f"{number}.de" for number in range(12)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: record(dataclasses.replace(evaluation, test_set=name), str(tmp_path)), names))
    rows = [line.split(",")[0] for line in (tmp_path / "README.md").read_text().splitlines() if line.startswith("| ")]
    assert sorted(rows) == sorted(f"| {name}" for name in names)
