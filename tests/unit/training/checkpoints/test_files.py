import json
import os
import resource
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from training.checkpoints.files import (
    average_checkpoints,
    check_checkpoint,
    damage,
    find_checkpoint,
    list_checkpoints,
    prune,
    read_state,
    save_checkpoint,
    set_aside,
)
from vaswani.errors import UserError


@pytest.fixture
def save(random_model, tmp_path):
    def save(step, model=None, note=""):
        return save_checkpoint(tmp_path, step, model or random_model(), {"step.x": torch.ones(3)}, {"a": step}, note)

    return save


def names(folders):
    return [folder.name for folder in folders]


def test_a_checkpoint_holds_no_pickle_and_reads_back(save, tmp_path):
    folder = save(7)
    assert folder == tmp_path / "step-0000007"
    assert read_state(folder) == {"a": 7}
    assert damage(folder) is None
    assert {path.suffix for path in folder.iterdir()} == {".json", ".py", ".safetensors"}


def test_only_the_newest_of_the_schedule_are_kept_and_the_newest_best(save, tmp_path):
    for step, note in (
        (3, "best"),
        (5, ""),
        (7, "interrupted"),
        (10, ""),
        (12, "best"),
        (15, ""),
        (16, "interrupted"),
    ):
        save(step, note=note)
    prune(tmp_path, 2)
    assert names(list_checkpoints(tmp_path)) == [
        "step-0000010", "step-0000012-best", "step-0000015", "step-0000016-interrupted"
    ]  # fmt: skip
    assert names(list_checkpoints(tmp_path, "")) == ["step-0000010", "step-0000015"]
    prune(tmp_path, None)
    assert len(list_checkpoints(tmp_path)) == 4


def test_interrupted_ones_are_limited_where_the_schedule_has_none(save, tmp_path):
    for step in (5, 10, 15):
        save(step, note="interrupted")
    prune(tmp_path, None)
    assert len(list_checkpoints(tmp_path)) == 3
    prune(tmp_path, 2)
    assert names(list_checkpoints(tmp_path)) == ["step-0000010-interrupted", "step-0000015-interrupted"]


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-1])


def change(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "config.json"])
@pytest.mark.parametrize("harm", [cut_off, change, lambda path: path.unlink()], ids=["cut off", "changed", "missing"])
def test_the_newest_good_checkpoint_is_found(save, tmp_path, name, harm):
    older, newer = save(5), save(10)
    assert find_checkpoint(tmp_path, "latest") == (newer, {})
    harm(newer / name)
    folder, superseded = find_checkpoint(tmp_path, "latest")
    assert folder == older
    assert name in superseded[newer]
    with pytest.raises(UserError, match=rf"step-0000010' is damaged \({name}"):
        find_checkpoint(tmp_path, str(newer))


def test_torn_checksums_are_damage_too(save, tmp_path):
    folder = save(5)
    cut_off(folder / "checksums.json")
    assert "cannot be read" in damage(folder)
    with pytest.raises(UserError, match="none of the 1 checkpoints"):
        find_checkpoint(tmp_path, "latest")


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_checksums_without_one_of_what_is_resumed_are_damage_too(save, name):
    folder = save(5)
    sums = json.loads((folder / "checksums.json").read_text())
    del sums[name]
    (folder / "checksums.json").write_text(json.dumps(sums))
    assert damage(folder) == f"checksums.json does not name {name}"


def test_an_unfinished_checkpoint_is_none_and_is_removed_by_the_next(save, tmp_path):
    (tmp_path / ".unfinished-step-0000005").mkdir()
    assert find_checkpoint(tmp_path, "latest") == (None, {})
    save(10)
    assert names(tmp_path.iterdir()) == ["step-0000010"]


def test_going_back_to_an_earlier_one_loses_nothing(save, tmp_path):
    older, newer = save(5), save(10)
    folder, superseded = find_checkpoint(tmp_path, str(older))
    assert (folder, list(superseded)) == (older, [newer])
    assert set_aside(newer).name == "set-aside-step-0000010"
    assert set_aside(save(10)).name == "set-aside-step-0000010-2"
    assert list_checkpoints(tmp_path) == [older]


def test_only_checkpoints_of_the_run_can_be_resumed(save, tmp_path):
    save(5)
    foreign = tmp_path / "elsewhere" / "step-0000005"
    foreign.mkdir(parents=True)
    with pytest.raises(UserError, match=r"must be 'latest' or a checkpoint in .* \(step-0000005\)"):
        check_checkpoint(tmp_path, str(foreign))
    (foreign / "recipe.toml").touch()
    with pytest.raises(UserError, match="it holds what was published, which may be an average"):
        check_checkpoint(tmp_path, str(foreign))


def test_a_full_disk_is_one_sentence_and_leaves_the_earlier_ones(save, tmp_path):
    earlier = save(5)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))  # writing more fails as on a full disk
    try:
        with pytest.raises(
            UserError, match=r"the checkpoint of step 10 could not be saved .*1 earlier ones are intact"
        ):
            save(10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert names(tmp_path.iterdir()) == ["step-0000005"]
    assert damage(earlier) is None


def test_checksums_are_sha256(save):
    import hashlib

    folder = save(5)
    sums = json.loads((folder / "checksums.json").read_text())
    assert sums["state.json"] == hashlib.sha256((folder / "state.json").read_bytes()).hexdigest()
    assert set(sums) == {path.name for path in folder.iterdir()} - {"checksums.json"}


def test_the_average_is_that_of_every_weight_and_shared_ones_stay_shared(random_model, save):
    models = [random_model() for _ in range(3)]
    averages = average_checkpoints([save(step, model) for step, model in enumerate(models)])
    target = random_model()
    target.load_state_dict(averages, strict=False)
    for name, parameter in target.named_parameters():
        mean = torch.stack([dict(model.named_parameters())[name] for model in models]).mean(0)
        assert torch.allclose(parameter, mean, atol=1e-7), name
    assert target.lm_head.weight is target.model.shared.weight


def test_only_checkpoints_of_one_model_can_be_averaged(random_model, save):
    folders = [save(depth, random_model(encoder_layers=depth)) for depth in (1, 2)]
    with pytest.raises(ValueError, match="step-0000002 holds other tensors than"):
        average_checkpoints(folders)
    with pytest.raises(ValueError, match="no checkpoint"):
        average_checkpoints([])


def test_a_checkpoint_gets_its_name_when_all_of_it_is_on_the_disk(random_model, tmp_path, monkeypatch):
    calls = []
    rename, sync = Path.rename, os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append(Path(os.readlink(f"/proc/self/fd/{fd}"))), sync(fd)))
    monkeypatch.setattr(Path, "rename", lambda path, new: (calls.append((path, new)), rename(path, new))[1])
    folder = save_checkpoint(tmp_path, 5, random_model(), {"step.x": torch.ones(3)}, {})
    unfinished = tmp_path / ".unfinished-step-0000005"
    files = {unfinished / path.name for path in folder.iterdir()}
    *synced, named, after = calls
    assert set(synced) == files | {unfinished}
    assert synced[-1] == unfinished
    assert (named, after) == ((unfinished, folder), tmp_path)


def test_a_step_that_is_saved_twice_loses_nothing(random_model, tmp_path):
    for value in (1, 2, 3):
        folder = save_checkpoint(tmp_path, 5, random_model(), {"step.x": torch.ones(3)}, {"a": value})
    assert read_state(folder) == {"a": 3}
    kept = {path.name: read_state(path)["a"] for path in tmp_path.iterdir()}
    assert kept == {"step-0000005": 3, "set-aside-step-0000005": 1, "set-aside-step-0000005-2": 2}
    assert damage(tmp_path / "set-aside-step-0000005") is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_averages_are_added_up_in_float64(tmp_path, dtype):
    values = [2.0**30, 3.0, -(2.0**30)]  # in float32, the first swallows the second
    folders = []
    for number, value in enumerate(values):
        folders.append(tmp_path / str(number))
        folders[-1].mkdir()
        save_file({"x": torch.tensor([value], dtype=dtype)}, folders[-1] / "model.safetensors")
    average = average_checkpoints(folders)["x"]
    assert (average.item(), average.dtype) == (1.0, dtype)
    first, second, third = torch.tensor(values, dtype=torch.float32)
    assert first + second + third == 0  # the control


def test_without_a_limit_all_of_the_schedule_are_kept(save, tmp_path):
    for step in (5, 10, 15):
        save(step)
    prune(tmp_path, 3)
    prune(tmp_path, None)
    assert names(list_checkpoints(tmp_path)) == ["step-0000005", "step-0000010", "step-0000015"]
    prune(tmp_path, 1)
    assert names(list_checkpoints(tmp_path)) == ["step-0000015"]
