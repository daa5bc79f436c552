import json

import pytest

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


def test_a_row_goes_to_the_run_of_its_model_or_checkpoint(evaluation, run):
    for folder in (run / "model", run / "checkpoints" / "step-0000500"):
        assert metrics_of(folder) == run / "metrics.jsonl"
        assert record(evaluation, str(folder)) == f"Recorded in {run / 'metrics.jsonl'}"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows[2:] == [evaluation.to_row()] * 2


def test_a_folder_by_itself_has_its_own_metrics_and_a_hub_id_none(evaluation, tmp_path):
    assert record(evaluation, str(tmp_path)) == f"Recorded in {tmp_path / 'metrics.jsonl'}"
    assert record(evaluation, "some/model") == "Not recorded: some/model is no folder."
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").mkdir()
    assert record(evaluation, str(tmp_path)).startswith("Not recorded: ")
