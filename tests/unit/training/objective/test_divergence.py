import pytest
import torch

from training.objective.divergence import symmetric_divergence


def by_definition(first, second):
    """Eq. 2 of R-Drop by PyTorch's own KL divergence, of which the second argument is the distribution that weighs."""
    logs = first.log_softmax(-1), second.log_softmax(-1)
    kl = torch.nn.functional.kl_div
    both = (kl(logs[1 - side], logs[side], reduction="sum", log_target=True) for side in (0, 1))
    return sum(both) / 2


def divergence_of(logits):
    return symmetric_divergence(logits, [one.softmax(-1) for one in logits], [one.logsumexp(-1) for one in logits])


def test_divergence_and_gradients_are_those_of_the_definition():
    logits = [(torch.randn(6, 11, dtype=torch.float64) * 2).requires_grad_() for _ in range(2)]
    expected = by_definition(*logits)
    wanted = torch.autograd.grad(expected, logits)
    found, gradients = divergence_of([one.detach() for one in logits])
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    for ours, theirs in zip(gradients, wanted, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)
    assert not torch.allclose(gradients[0], -wanted[1], atol=1e-3)  # the control: they are not opposite


def test_two_equal_predictions_are_not_apart():
    logits = torch.randn(4, 9)
    found, gradients = divergence_of([logits, logits + 3.0])
    assert found.item() == pytest.approx(0.0, abs=1e-5)
    assert all(gradient.abs().max() < 1e-5 for gradient in gradients)


def test_bfloat16_is_computed_on_in_float32():
    logits = [torch.randn(50, 300).bfloat16() for _ in range(2)]
    parts = [[one.softmax(-1) for one in logits], [one.float().logsumexp(-1) for one in logits]]
    found, gradients = symmetric_divergence(logits, *parts)
    assert (found.dtype, gradients[0].dtype) == (torch.float32, torch.bfloat16)
    assert found.item() == pytest.approx(by_definition(*(one.double() for one in logits)).item(), rel=1e-2)
