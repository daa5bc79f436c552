"""Saving, resuming, and the choice of the weights to publish."""

import json

import pytest
import torch
from accelerate import Accelerator

from training.checkpoints import manager as manager_module
from training.checkpoints.files import STATE, WEIGHTS
from training.checkpoints.manager import CheckpointManager, Progress, Sums
from training.settings import RunSettings
from vaswani.errors import UserError


FINGERPRINT = {"recipe": {"seed": 1}}


@pytest.fixture
def make(random_model, tmp_path):
    """Return a factory of managers of the same run, with their optimizers and what they said."""

    def make(fingerprint=FINGERPRINT, **settings):
        torch.manual_seed(1)
        model, said = random_model(), []
        optimizer = torch.optim.Adam(model.parameters())
        settings = RunSettings(output_dir=str(tmp_path), **settings)
        return CheckpointManager(Accelerator(cpu=True), settings, model, fingerprint, said.append), optimizer, said

    return make


def set_weights(manager, value):
    with torch.no_grad():
        for weight in manager.model.parameters():
            weight.fill_(value)


def value_of(manager):
    (value,) = {round(weight.mean().item(), 5) for weight in manager.model.parameters()}
    return value


def save_steps(manager, optimizer, steps, note=""):
    """Save checkpoints whose weights are all equal to their step."""
    for step in steps:
        set_weights(manager, float(step))
        manager.save(Progress(step=step), optimizer, note)


def names(manager):
    return sorted(path.name for path in manager.directory.iterdir())


def test_what_was_saved_is_resumed(make):
    manager, optimizer, _ = make()
    sum(weight.sum() for weight in manager.model.parameters()).backward()
    optimizer.step()
    progress = Progress(5, 1, 3, 9, 2, 1, Sums(1.5, 1.25, 10.0, 30.0, 40.0), [[2, 4.5]])
    manager.save(progress, optimizer)
    assert manager.saved_step == 5
    again, its_optimizer, said = make(resume_from_checkpoint="latest")
    assert again.resume(its_optimizer) == progress
    assert again.saved_step == 5
    assert said[0].endswith("step-0000005 at step 5")
    for one, other in zip(manager.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
        assert torch.equal(optimizer.state[one]["exp_avg_sq"], its_optimizer.state[other]["exp_avg_sq"])


def test_the_scale_of_fp16_is_resumed_too(make):
    manager, optimizer, _ = make()
    manager.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    manager.save(Progress(step=5), optimizer)
    again, its_optimizer, _ = make(resume_from_checkpoint="latest")
    again.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    again.resume(its_optimizer)
    assert again.accelerator.scaler.state_dict()["scale"] == 8.0
    # In another precision, there and back.
    without, its_optimizer, _ = make(resume_from_checkpoint="latest")
    without.save(without.resume(its_optimizer), its_optimizer)
    again.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    assert again.resume(its_optimizer).step == 5
    assert again.accelerator.scaler.state_dict()["scale"] == 4.0


def test_another_number_of_processes_is_said(make, monkeypatch):
    manager, optimizer, _ = make()
    save_steps(manager, optimizer, [1])
    again, its_optimizer, said = make(resume_from_checkpoint="latest")
    again.resume(its_optimizer)
    assert len(said) == 1
    monkeypatch.setattr(type(again.accelerator), "num_processes", 2)
    again.resume(its_optimizer)
    assert said[-1].startswith("It was saved by 1 process(es), now there are 2: updates hold the same pairs")


def test_another_precision_is_refused(make, monkeypatch):
    manager, optimizer, _ = make()
    save_steps(manager, optimizer, [1])
    again, its_optimizer, _ = make(resume_from_checkpoint="latest")
    monkeypatch.setattr(type(again.accelerator), "mixed_precision", "bf16")
    with pytest.raises(UserError, match="of another run: mixed_precision is 'no' there, 'bf16' here"):
        again.resume(its_optimizer)
    state = manager.directory / "step-0000001" / STATE
    earlier = json.loads(state.read_text())
    del earlier["mixed_precision"]  # which earlier versions did not note
    monkeypatch.setattr(manager_module, "read_state", lambda _: earlier)
    assert again.resume(its_optimizer).step == 1


def test_sums_are_a_list_on_the_disk_and_those_that_earlier_versions_wrote_are_read(make):
    manager, optimizer, _ = make()
    manager.save(Progress(step=1, sums=Sums(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7)), optimizer)
    state = json.loads((manager.directory / "step-0000001" / STATE).read_text())
    assert state["progress"]["sums"] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7]
    assert state["identity"] == FINGERPRINT
    assert Progress.from_state(state["progress"]).sums == Sums(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7)
    earlier = state["progress"] | {"sums": [1.0, 2.0, 3.0, 4.0, 5.0]}
    assert Progress.from_state(earlier).sums == Sums(1.0, 2.0, 3.0, 4.0, 5.0)


def test_sums_are_added_field_by_field():
    assert Sums(1, 2, 3, 4, 5).plus(Sums(10, 20, 30, 40, 50)) == Sums(11, 22, 33, 44, 55)


def test_another_run_is_refused_and_changes_nothing(make):
    manager, optimizer, _ = make()
    save_steps(manager, optimizer, [1])
    other, its_optimizer, _ = make(fingerprint={"recipe": {"seed": 2}}, resume_from_checkpoint="latest")
    before = [weight.clone() for weight in other.model.parameters()]
    with pytest.raises(UserError, match=r"step-0000001 cannot be resumed, .* recipe's seed is 1 there, 2 here"):
        other.resume(its_optimizer)
    assert all(torch.equal(*pair) for pair in zip(before, other.model.parameters(), strict=True))


def test_nothing_is_resumed_unless_asked_for_and_none_yet_is_said(make):
    manager, optimizer, said = make()
    save_steps(manager, optimizer, [1])
    assert make()[0].resume(optimizer) == Progress()
    (manager.directory / "step-0000001").rename(manager.directory / "elsewhere")
    again, _, said = make(resume_from_checkpoint="latest")
    assert again.resume(optimizer) == Progress()
    assert said == ["There is no checkpoint yet: the run begins at its beginning"]


def test_old_checkpoints_are_removed_only_once_the_new_one_is_whole(make, monkeypatch):
    manager, optimizer, _ = make(save_total_limit=2)
    save_steps(manager, optimizer, [1, 2, 3])
    assert names(manager) == ["step-0000002", "step-0000003"]

    def fail(*_):
        raise UserError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(manager_module, "save_checkpoint", fail)
        with pytest.raises(UserError, match="disk"):
            save_steps(manager, optimizer, [4])
    assert names(manager) == ["step-0000002", "step-0000003"]
    assert manager.saved_step == 3


@pytest.mark.parametrize(("average", "count", "mean"), [(1, 1, 9.0), (2, 2, 3.5), (3, 3, 3.0), (9, 4, 2.5)])
def test_the_newest_checkpoints_are_averaged_and_counted(make, average, count, mean):
    manager, optimizer, said = make(average_checkpoints=average)
    save_steps(manager, optimizer, [1, 2, 3, 4])
    set_weights(manager, 9.0)
    assert manager.choose_weights() == (count, 4 if average > 1 else None)
    assert value_of(manager) == mean
    few = "The run has made 4 of the 9 checkpoints that average_checkpoints asks for: their average will be published"
    assert said == ([few] if average > count else [])


def test_a_damaged_checkpoint_is_left_out_and_not_counted(make):
    manager, optimizer, said = make(average_checkpoints=3)
    save_steps(manager, optimizer, [1, 2, 3])
    path = manager.directory / "step-0000002" / WEIGHTS
    path.write_bytes(path.read_bytes()[:-1])
    assert manager.choose_weights() == (2, 3)
    assert value_of(manager) == 2.0
    assert said == [f"step-0000002 is damaged ({WEIGHTS} differs from its checksum): it is left out"]


def test_the_best_weights_are_no_average_where_a_run_was_killed_before_it_removed_the_ones_before(make, monkeypatch):
    manager, optimizer, _ = make(early_stopping_patience=2)
    monkeypatch.setattr(manager_module, "prune", lambda *_: None)
    save_steps(manager, optimizer, [1, 3], "best")
    set_weights(manager, 9.0)
    assert manager.choose_weights() == (1, 3)
    assert value_of(manager) == 3.0


def test_with_early_stopping_the_best_weights_are_chosen_and_interrupted_ones_never(make):
    manager, optimizer, _ = make(early_stopping_patience=2)
    save_steps(manager, optimizer, [1], "best")
    save_steps(manager, optimizer, [2])
    save_steps(manager, optimizer, [3], "interrupted")
    assert manager.choose_weights() == (1, 1)
    assert value_of(manager) == 1.0
    averaging, _, said = make(average_checkpoints=3)
    assert averaging.choose_weights() == (1, 2)
    assert value_of(averaging) == 2.0
    assert said[0].endswith("1 of the 3 checkpoints that average_checkpoints asks for: the last will be published")
    both, _, said = make(average_checkpoints=3, early_stopping_patience=2)
    assert both.choose_weights() == (1, 1)
    assert said[0].endswith("asks for: the best will be published")
    save_steps(manager, optimizer, [4, 5])
    assert both.choose_weights() == (3, 5)
