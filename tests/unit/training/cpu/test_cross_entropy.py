"""Projection and loss of the kernels against those of all logits in float64."""

import pytest
import torch

from training.cpu import cross_entropy, kernels
from training.cpu.cross_entropy import SmoothedCrossEntropy
from training.objective.loss import fused_label_smoothed_sums, label_smoothed_sums


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("most", [2**24, 1, 64 * 37])  # all 128 rows, and twice 64
def test_loss_and_gradients_are_those_of_all_logits_in_any_parts(monkeypatch, label_smoothing, most):
    monkeypatch.setattr(cross_entropy, "MAX_LOGITS", most)
    torch.manual_seed(0)
    rounded = torch.randn(1, kernels.padded(70), 16).bfloat16()
    labels = torch.randint(37, rounded.shape[1:2])
    labels[5] = labels[20:24] = labels[70:] = -100
    states, weight = rounded.float().requires_grad_(), torch.randn(37, 16).bfloat16().float().requires_grad_()
    loss, nll_loss = SmoothedCrossEntropy.apply(states, rounded, weight, labels, label_smoothing, 3, None)
    (loss * 0.5).backward()

    exact = [each.detach().double().requires_grad_() for each in (states, weight)]
    wanted = label_smoothed_sums(exact[0] @ exact[1].T, labels, label_smoothing)
    (wanted.loss * 0.5).backward()
    assert loss.item() == pytest.approx(wanted.loss.item(), rel=2e-3)
    assert nll_loss.item() == pytest.approx(wanted.nll.item(), rel=2e-3)
    assert not nll_loss.requires_grad
    exact[1].grad[3] = 0  # the row that is frozen
    for found, each in zip((states, weight), exact, strict=True):
        assert (found.grad.double() - each.grad).norm() < 0.01 * each.grad.norm()
    assert not states.grad[0, labels == -100].any()
    assert not weight.grad[3].any()


@pytest.mark.parametrize("most", [2**24, 1])
def test_two_passes_add_how_far_apart_they_are(monkeypatch, most):
    monkeypatch.setattr(cross_entropy, "MAX_LOGITS", most)
    torch.manual_seed(0)
    rounded = torch.randn(2, kernels.padded(70), 16).bfloat16()
    labels = torch.randint(37, rounded.shape[1:2])
    labels[5] = labels[20:24] = labels[70:] = -100
    states, weight = rounded.float().requires_grad_(), torch.randn(37, 16).bfloat16().float().requires_grad_()
    loss, nll_loss = SmoothedCrossEntropy.apply(states, rounded, weight, labels, 0.1, 3, 5.0)
    (loss * 0.5).backward()

    exact = [each.detach().double().requires_grad_() for each in (states, weight)]
    sums = fused_label_smoothed_sums(*exact, torch.stack([labels, labels]), 0.1, frozen_row=3, rdrop_alpha=5.0)
    (sums.loss * 0.5).backward()
    assert loss.item() == pytest.approx(sums.loss.item(), rel=2e-3)
    assert nll_loss.item() == pytest.approx(sums.nll.item(), rel=2e-3)
    for found, each in zip((states, weight), exact, strict=True):
        assert (found.grad.double() - each.grad).norm() < 0.01 * each.grad.norm()
    assert not states.grad[:, labels == -100].any()
    assert not weight.grad[3].any()
