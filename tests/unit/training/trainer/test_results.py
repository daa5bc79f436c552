"""What an update gives, and that reading it does not wait for what comes after it."""

import math

import pytest
import torch

from training.trainer.results import PendingResult, UpdateResult


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_weights_may_change_if_loss_and_gradient_are_numbers(wrong):
    good = UpdateResult(1.0, 2.0, 0.0, 0.0, 3.0)
    assert good.is_finite
    assert not good._replace(loss=wrong).is_finite
    assert not good._replace(gradient_norm=wrong).is_finite


def test_a_result_is_read_field_by_field():
    assert PendingResult(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])).read() == UpdateResult(
        loss=1.0, nll=2.0, stop_votes=3.0, save_votes=4.0, gradient_norm=5.0
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_is_not_waited_for_once_it_has_the_result():
    totals = torch.arange(5.0, device="cuda")
    pending = PendingResult(totals + 1)
    torch.cuda._sleep(2_000_000_000)  # about a second
    behind = torch.cuda.Event()
    behind.record()
    assert pending.read() == UpdateResult(1.0, 2.0, 3.0, 4.0, 5.0)
    assert not behind.query()
