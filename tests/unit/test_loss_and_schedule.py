import numpy as np
import pytest
import torch

from training.loss import label_smoothed_sums
from training.schedule import learning_rate


def smoothed_in_numpy(logits: np.ndarray, labels: np.ndarray, epsilon: float) -> tuple[float, float, int]:
    """Section 5.4 as the original code has it, one token after the other."""
    loss = nll = tokens = 0
    for row, label in zip(logits.astype(np.float64), labels, strict=True):
        if label == -100:
            continue
        log_probabilities = row - np.log(np.exp(row).sum())
        wanted = np.full(len(row), epsilon / (len(row) - 1))
        wanted[label] = 1 - epsilon
        loss, nll, tokens = loss - wanted @ log_probabilities, nll - log_probabilities[label], tokens + 1
    return loss, nll, tokens


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5])
def test_sums_equal_the_definition(epsilon):
    logits, labels = torch.randn(3, 4, 11) * 3, torch.randint(0, 11, (3, 4))
    labels[0, 2:] = labels[2, 0] = -100
    expected = smoothed_in_numpy(logits.reshape(12, 11).numpy(), labels.reshape(12).numpy(), epsilon)
    assert np.allclose([value.item() for value in label_smoothed_sums(logits, labels, epsilon)], expected, rtol=1e-6)


def test_spreading_over_all_types_as_pytorch_does_is_something_else():
    logits, labels = torch.randn(8, 5) * 3, torch.randint(0, 5, (8,))
    pytorch = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=0.1, reduction="sum")
    assert abs(pytorch - label_smoothed_sums(logits, labels, 0.1).loss) > 1e-3


def test_the_gradient_is_that_of_the_smoothed_sum_alone():
    logits, labels = torch.randn(6, 7, dtype=torch.float64), torch.randint(0, 7, (6,))
    logits.requires_grad_()
    sums = label_smoothed_sums(logits, labels, 0.1)
    assert not sums.nll.requires_grad
    sums.loss.backward()
    wanted = torch.full((6, 7), 0.1 / 6, dtype=torch.float64).scatter(1, labels[:, None], 0.9)
    assert torch.allclose(logits.grad, logits.softmax(-1) - wanted, atol=1e-7)  # computed on in float32


def test_bfloat16_logits_are_summed_in_float32():
    logits, labels = torch.randn(4000, 5).bfloat16(), torch.randint(0, 5, (4000,))
    assert label_smoothed_sums(logits, labels, 0.1).loss.dtype == torch.float32


@pytest.mark.parametrize(("d_model", "warmup"), [(512, 4000), (1024, 4000), (256, 1)])
def test_equation_3_at_its_corners(d_model, warmup):
    peak = (d_model * warmup) ** -0.5
    assert learning_rate(1, d_model, warmup) == pytest.approx(peak / warmup)
    assert learning_rate(warmup, d_model, warmup) == pytest.approx(peak)
    assert learning_rate(warmup + 1, d_model, warmup) == pytest.approx(peak * (warmup / (warmup + 1)) ** 0.5)
