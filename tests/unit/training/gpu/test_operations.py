"""Which keys a query sees, and how wide a block is."""

import numpy as np
import packed_operations
import pytest
import torch

from training.data.batch_plan import Side
from training.data.packing import pack
from training.gpu.operations import Projected, power_of_two, same_sentence, sum_of_rows, weight_gradient


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


def test_rows_may_be_parts_of_wider_ones():
    wide = torch.zeros(4, 30)
    assert Projected(wide[:, :8], wide[:, 8:16], torch.zeros(4, 5)).strides == [30, 30, 5]


def test_a_block_is_as_wide_as_a_power_of_two():
    assert [power_of_two(number) for number in (1, 2, 3, 64, 65, 512)] == [1, 2, 4, 64, 128, 512]


@pytest.mark.parametrize("shape", [(1, 5), (7, 3), (500, 3, 4)])
def test_rows_are_summed(shape):
    parts = torch.randn(*shape, dtype=torch.float64)
    torch.testing.assert_close(sum_of_rows(parts), parts.sum(0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_gradient_of_a_weight_is_in_float32_or_wider(dtype):
    d_output, states = (torch.randn(64, width).to(dtype) for width in (5, 8))
    found = weight_gradient(d_output, states)
    assert found.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(found.to(dtype), d_output.T @ states)
