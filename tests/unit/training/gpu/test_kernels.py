"""Triton's kernels against the same in float64, on a GPU or in Triton's interpreter."""

import numpy as np
import packed_operations
import pytest
import torch
from packed_operations import DEVICE, IN_INTERPRETER, needs_kernels

from training.data.batch_plan import Side
from training.data.packing import pack
from training.gpu import operations
from training.gpu.operations import Projected, same_sentence


# The interpreter has no bfloat16.
PRECISIONS = [(torch.float32, 1e-5)] if IN_INTERPRETER else [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)]


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.detach().double() - wanted.detach()).norm() / wanted.detach().norm())


@pytest.mark.gpu
@needs_kernels
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("attention", ["source", "target", "both"])
def test_attention_and_its_gradients(attention, dtype, tolerance):
    lengths = np.random.default_rng(2).integers(1, 21, (2, 40))
    sides = pack(*(Side(np.ones(each.sum(), int), each) for each in lengths), 9)
    sources, targets = sides.source_sentences.to(DEVICE), sides.target_sentences.to(DEVICE)
    queries, keys = {"source": (sources, sources), "target": (targets, targets), "both": (targets, sources)}[attention]
    seen = same_sentence(queries, keys, attention == "target")
    generator = torch.Generator(DEVICE).manual_seed(1)

    def some(rows, width):
        wide = torch.randn(rows, 2 * width, device=DEVICE, generator=generator).to(dtype)
        return wide[:, :width]  # columns of a wider tensor

    projected = Projected(some(len(queries), 3 * 16), some(len(keys), 3 * 16), some(len(keys), 3 * 32))
    d_output = torch.randn(len(queries), 3 * 32, device=DEVICE, generator=generator).to(dtype)
    output, logsumexp = operations.attend(projected, seen, 3, 0.3)
    into = Projected(*(torch.full((len(part), 200), torch.nan, device=DEVICE, dtype=dtype) for part in projected))
    into = Projected(*(place[:, 8 : 8 + part.shape[1]] for place, part in zip(into, projected, strict=True)))
    biases = operations.attend_backward(projected, seen, 3, 0.3, output, logsumexp, d_output, into)
    truth = Projected(*(part.double() for part in projected))
    wanted_output, _ = packed_operations.attend(truth, seen, 3, 0.3)
    wanted = Projected(*(torch.empty_like(part) for part in truth))
    wanted_biases = packed_operations.attend_backward(truth, seen, 3, 0.3, None, None, d_output.double(), wanted)
    assert error(output, wanted_output) < tolerance
    for one, other in zip((*into, *biases), (*wanted, *wanted_biases), strict=True):
        assert error(one, other) < tolerance


@pytest.mark.gpu
@needs_kernels
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize(("rows", "width", "p"), [(37, 48, 0.0), (37, 48, 0.3), (2500, 64, 0.1)])
def test_the_norm_of_a_residual_and_its_gradients(rows, width, p, dtype, tolerance):
    generator = torch.Generator(DEVICE).manual_seed(1)
    states, output = (torch.randn(rows, width, device=DEVICE, generator=generator).to(dtype) for _ in range(2))
    gain, bias = (torch.randn(width, device=DEVICE, generator=generator) for _ in range(2))
    d_normed = torch.randn(rows, width, device=DEVICE, generator=generator).to(dtype)
    seed = torch.tensor(123456789, device=DEVICE)
    normed = operations.add_and_norm(states, output, gain, bias, seed, 0.01, p)
    found = operations.add_and_norm_backward(d_normed, normed, gain, seed, p)
    ones = torch.ones_like(output)
    kept = operations.add_and_norm(torch.zeros_like(states), ones, gain, bias, seed, 0.01, p).total != 0
    given = [each.double().requires_grad_() for each in (states, output, gain, bias, torch.zeros_like(bias))]
    dropped = (given[1] + given[4]) * kept / (1 - p)
    wanted_output = torch.nn.functional.layer_norm(given[0] + dropped, (width,), given[2], given[3], 0.01)
    wanted = torch.autograd.grad(wanted_output, given, d_normed.double())
    assert normed.output.dtype == dtype
    assert error(normed.output, wanted_output) < tolerance
    for one, other in zip((*found[:2], *found[2]), wanted, strict=True):
        assert error(one, other) < tolerance


@pytest.mark.gpu
@needs_kernels
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize(("rows", "width"), [(7, 100), (300, 128)])
def test_gradients_go_through_relu_where_it_is_active(rows, width, dtype, tolerance):
    generator = torch.Generator(DEVICE).manual_seed(1)
    active, gradient = (torch.randn(rows, width, device=DEVICE, generator=generator).to(dtype) for _ in range(2))
    active = active.relu()
    wanted = gradient * (active > 0)
    d_bias = operations.relu_backward_(gradient, active)
    assert gradient.equal(wanted)
    assert error(d_bias, wanted.double().sum(0)) < tolerance


@pytest.mark.gpu
@needs_kernels
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("width", [100, 5000])
def test_softmax_and_logsumexp(width, dtype, tolerance):
    logits = 5 * torch.randn(9, width, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(1))
    logits[0] -= 300
    logits[1] += 300
    logits = logits.to(dtype)
    truth = logits.double()
    found, logsumexp = operations.softmax_and_logsumexp_(logits)
    assert found.data_ptr() == logits.data_ptr()
    assert logsumexp.dtype == torch.float32
    assert error(found, truth.softmax(-1)) < tolerance
    assert error(logsumexp, truth.logsumexp(-1)) < 1e-5


@pytest.mark.gpu
@needs_kernels
def test_what_is_dropped_looks_random_and_follows_from_the_seed():
    rows, width, p = 1000, 64, 0.1

    def dropped(seed: int) -> torch.Tensor:
        zeros, ones = torch.zeros(rows, width, device=DEVICE), torch.ones(rows, width, device=DEVICE)
        number = torch.tensor(seed, device=DEVICE)
        total = operations.add_and_norm(zeros, ones, ones[0], zeros[0], number, 0.01, p).total
        assert total.unique().tolist() == [0.0, pytest.approx(1 / (1 - p))]
        return (total == 0).double().flatten()

    one, again, next_seed, far_seed = dropped(7), dropped(7), dropped(8), dropped(2**31 - 2)
    assert one.equal(again)
    deviation = (p * (1 - p) / len(one)) ** 0.5
    for mask in (one, next_seed, far_seed):
        assert abs(mask.mean() - p) < 4 * deviation
        assert abs(mask.view(rows, width).mean(0) - p).max() < 4.5 * (p * (1 - p) / rows) ** 0.5
    others = [next_seed, far_seed, *(one.roll(shift) for shift in (1, 2, width, width + 1, 1024))]
    for other in others:
        correlation = ((one - p) * (other - p)).mean() / (p * (1 - p))
        assert abs(correlation) < 4.5 * len(one) ** -0.5
