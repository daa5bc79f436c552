"""Which keys a query sees; and Triton's kernels against the same in float64.

The kernels run on a GPU, or, where Triton is installed, in its interpreter: TRITON_INTERPRET=1.
"""

import os
from importlib.util import find_spec

import numpy as np
import packed_operations
import pytest
import torch
from torch._dynamo.testing import CompileCounter

from training.data.batch_plan import Side
from training.data.packing import pack
from training.gpu.operations import add_and_norm, attend, same_sentence


IN_INTERPRETER = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
DEVICE = "cpu" if IN_INTERPRETER else "cuda"
needs_kernels = pytest.mark.skipif(
    not (IN_INTERPRETER or torch.cuda.is_available()), reason="needs a CUDA device, or TRITON_INTERPRET=1 with Triton"
)
# The interpreter has no bfloat16.
PRECISIONS = [(torch.float32, 1e-5)] if IN_INTERPRETER else [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)]


def batch(count: int, longest: int, seed: int = 2):
    lengths = np.random.default_rng(seed).integers(1, longest + 1, (2, count))
    return pack(*(Side(np.ones(each.sum(), int), each) for each in lengths), 9)


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_query_sees_the_keys_of_its_sentence(is_causal):
    for count, longest in ((3, 500), (60, 30), (300, 3), (1, 1)):
        sides = batch(count, longest)
        queries = sides.target_sentences
        keys = queries if is_causal else sides.source_sentences
        wanted = queries[:, None] == keys
        wanted = wanted.tril() if is_causal else wanted
        seen = same_sentence(queries, keys, is_causal)
        assert all(ends.dtype == torch.int32 for ends in seen)
        assert packed_operations.mask_of(*seen[:2], len(keys)).equal(wanted)
        assert packed_operations.mask_of(*seen[2:], len(queries)).equal(wanted.T)
        assert all((ends[1:] >= ends[:-1]).all() for ends in seen)  # a block's first and last rows tell what it sees


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


@pytest.mark.gpu
@needs_kernels
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("attention", ["source", "target", "both"])
def test_attention_and_its_gradients(attention, dtype, tolerance):
    sides = batch(40, 20)
    sources, targets = sides.source_sentences.to(DEVICE), sides.target_sentences.to(DEVICE)
    queries, keys = {"source": (sources, sources), "target": (targets, targets), "both": (targets, sources)}[attention]
    seen = same_sentence(queries, keys, attention == "target")
    generator = torch.Generator(DEVICE).manual_seed(1)

    def some(rows, width):
        wide = torch.randn(rows, 2 * width, device=DEVICE, generator=generator).to(dtype)
        return wide[:, :width].requires_grad_()  # columns of a wider tensor

    given = some(len(queries), 3 * 16), some(len(keys), 3 * 16), some(len(keys), 3 * 32)
    weight = torch.randn(len(queries), 3 * 32, device=DEVICE, generator=generator)
    output, _ = attend(*given, *seen, 3, 0.3)
    found = torch.autograd.grad((output * weight).sum(), given)
    truth = [each.detach().double().requires_grad_() for each in given]
    wanted_output, _ = packed_operations.attend(*truth, *seen, 3, 0.3)
    wanted = torch.autograd.grad((wanted_output * weight).sum(), truth)
    assert error(output, wanted_output) < tolerance
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == dtype
        assert error(one, other) < tolerance


@pytest.mark.gpu
@needs_kernels
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize(("rows", "width", "p"), [(37, 48, 0.0), (37, 48, 0.3), (2500, 64, 0.1)])
def test_the_norm_of_a_residual_and_its_gradients(rows, width, p, dtype, tolerance):
    generator = torch.Generator(DEVICE).manual_seed(1)
    states, output = (torch.randn(rows, width, device=DEVICE, generator=generator).to(dtype) for _ in range(2))
    gain, bias = (torch.randn(width, device=DEVICE, generator=generator) for _ in range(2))
    weight = torch.randn(rows, width, device=DEVICE, generator=generator)
    given = [each.requires_grad_() for each in (states, output, gain, bias)]
    seed = torch.tensor(123456789, device=DEVICE)
    normed, *_ = add_and_norm(*given, seed, 0.01, p)
    kept = add_and_norm(torch.zeros_like(states), torch.ones_like(output), gain, bias, seed, 0.01, p)[1] != 0
    found = torch.autograd.grad((normed * weight).sum(), given)
    truth = [each.detach().double().requires_grad_() for each in given]
    dropped = truth[0], truth[1] * kept / (1 - p), *truth[2:]
    wanted_normed, *_ = packed_operations.add_and_norm(*dropped, seed, 0.01, 0.0)
    wanted = torch.autograd.grad((wanted_normed * weight).sum(), truth)
    assert normed.dtype == dtype
    assert error(normed, wanted_normed) < tolerance
    for one, other in zip(found, wanted, strict=True):
        assert error(one, other) < tolerance


@pytest.mark.gpu
@needs_kernels
def test_what_is_dropped_looks_random_and_follows_from_the_seed():
    rows, width, p = 1000, 64, 0.1

    def dropped(seed: int) -> torch.Tensor:
        zeros, ones = torch.zeros(rows, width, device=DEVICE), torch.ones(rows, width, device=DEVICE)
        number = torch.tensor(seed, device=DEVICE)
        total = add_and_norm(zeros, ones, ones[0], zeros[0], number, 0.01, p)[1]
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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_one_graph_serves_all_numbers_of_rows():
    counter = CompileCounter()

    def compute(states, sources, targets):
        query, key = (states.new_ones((len(side), 32)) for side in (targets, sources))
        output, _ = attend(query, key, key, *same_sentence(targets, sources), 2, 0.25)
        return add_and_norm(output, output, states[0], states[1], sources[0], 0.01, 0.1)[0]

    compiled = torch.compile(compute, backend=counter, fullgraph=True, dynamic=True)
    states = torch.ones(2, 32, device=DEVICE)
    for count in (60, 40, 90, 30):
        sides = batch(count, 20)
        compiled(states, sides.source_sentences.to(DEVICE), sides.target_sentences.to(DEVICE))
    assert counter.frame_count == 1
