import pytest
import torch

from training.checkpoints import average_checkpoints, list_checkpoints, save_checkpoint


def test_only_the_newest_checkpoints_are_kept(random_model, tmp_path):
    for step in (5, 10, 15, 20):
        save_checkpoint(random_model(), tmp_path, step, total_limit=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-0000015", "step-0000020"]
    save_checkpoint(random_model(), tmp_path, 25)
    assert len(list_checkpoints(tmp_path)) == 3


def test_the_average_is_that_of_every_weight_and_shared_ones_stay_shared(random_model, tmp_path):
    models = [random_model() for _ in range(3)]
    folders = [save_checkpoint(model, tmp_path, step) for step, model in enumerate(models)]
    averages = average_checkpoints(folders)
    target = random_model()
    target.load_state_dict(averages, strict=False)
    for name, parameter in target.named_parameters():
        mean = torch.stack([dict(model.named_parameters())[name] for model in models]).mean(0)
        assert torch.allclose(parameter, mean, atol=1e-7), name
    assert target.lm_head.weight is target.model.shared.weight


def test_only_checkpoints_of_one_model_can_be_averaged(random_model, tmp_path):
    folders = [save_checkpoint(random_model(encoder_layers=depth), tmp_path, depth) for depth in (1, 2)]
    with pytest.raises(ValueError, match="step-0000002 holds other tensors than"):
        average_checkpoints(folders)
    with pytest.raises(ValueError, match="no checkpoint"):
        average_checkpoints([])
