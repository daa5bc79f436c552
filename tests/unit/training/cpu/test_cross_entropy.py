"""Projection and loss of the kernels against those of all logits in float64."""

import pytest
import torch

from training.cpu import cross_entropy, kernels
from training.cpu.cross_entropy import SmoothedCrossEntropy
from training.objective.loss import fused_label_smoothed_sums, label_smoothed_sums


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("frozen_row", [3, None])
@pytest.mark.parametrize("rdrop_alpha", [None, 5.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("most", [2**24, 1, 64 * 37])  # all 128 rows, and twice 64
def test_loss_and_gradients_are_those_of_all_logits_in_any_parts(
    monkeypatch, label_smoothing, frozen_row, rdrop_alpha, dtype, most
):
    monkeypatch.setattr(cross_entropy, "MAX_LOGITS", most)
    torch.manual_seed(0)
    rounded = torch.randn(1 if rdrop_alpha is None else 2, kernels.padded(70), 16).to(dtype)
    labels = torch.randint(37, rounded.shape[1:2])
    labels[5] = labels[20:24] = labels[70:] = -100
    states, weight = rounded.float().requires_grad_(), torch.randn(37, 16).to(dtype).float().requires_grad_()
    options = label_smoothing, frozen_row, rdrop_alpha
    loss, nll_loss = SmoothedCrossEntropy.apply(states, rounded, weight, labels, *options)
    (loss * 0.5).backward()

    exact = [each.detach().double().requires_grad_() for each in (states, weight)]
    if rdrop_alpha is None:
        wanted = label_smoothed_sums(exact[0] @ exact[1].T, labels, label_smoothing)
    else:
        wanted = fused_label_smoothed_sums(*exact, labels.repeat(2), label_smoothing, rdrop_alpha=rdrop_alpha)
    (wanted.loss * 0.5).backward()
    of_losses, of_gradients = (2e-3, 0.01) if dtype == torch.bfloat16 else (1e-6, 1e-5)
    assert loss.item() == pytest.approx(wanted.loss.item(), rel=of_losses)
    assert nll_loss.item() == pytest.approx(wanted.nll.item(), rel=of_losses)
    assert not nll_loss.requires_grad
    if frozen_row is not None:
        exact[1].grad[frozen_row] = 0
    for found, each in zip((states, weight), exact, strict=True):
        assert (found.grad.double() - each.grad).norm() < of_gradients * each.grad.norm()
    assert not states.grad[:, labels == -100].any()
    assert weight.grad[3].any() == (frozen_row is None)
