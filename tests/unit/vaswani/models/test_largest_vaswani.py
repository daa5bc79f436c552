"""The largest of many values are those that topk finds."""

import math

import pytest
import torch

from vaswani.models.largest_vaswani import block_maxima, largest, mend_block_maxima


@pytest.mark.parametrize("size", [7, 2047, 2048, 2051, 20_000])
@pytest.mark.parametrize("count", [1, 4, 7])
def test_the_largest_of_a_vocabulary_are_those_of_topk(size, count):
    values = torch.randn(5, size)
    values[0, :3] = math.inf
    values[1] = -math.inf
    values[1, -1] = 0
    best, places = largest(values, count)
    assert torch.equal(best, values.topk(count).values)
    assert torch.equal(values.gather(1, places), best)
    assert all(len(row.unique()) == count for row in places)


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("size", [5, 90, 683, 2051, 20_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_largest_sums_are_those_of_all_rows_of_a_sentence(size, num_beams, dtype):
    values, offsets, count = torch.randn(4 * num_beams, size, dtype=dtype), torch.randn(4, num_beams), 5
    offsets[0, -1], offsets[1, 0] = -math.inf, 100  # a hypothesis that has none, and one before all others
    if num_beams == 1:
        offsets[0, 0] = 0
    best, places = largest(values, count, offsets)
    sums = (values.view(4, num_beams, size) + offsets[..., None]).flatten(1)
    assert torch.equal(best, sums.topk(count).values)
    assert torch.equal(sums.gather(1, places), best)
    assert all(len(row.unique()) == count for row in places)
    assert (places[1] < size).all()
    again = largest(values, count, offsets, block_maxima(values))
    assert torch.equal(again[1], places)


def test_maxima_are_mended_where_columns_change():
    values = torch.randn(5, 43)
    maxima = block_maxima(values)
    assert maxima.shape == (5, 5)  # the last three columns are in no block
    columns = [values[0].argmax().item(), 7, 42]
    values[:, columns] = -math.inf
    assert not torch.equal(maxima, block_maxima(values))
    mend_block_maxima(maxima, values, columns)
    assert torch.equal(maxima, block_maxima(values))
    mend_block_maxima(maxima, values, [])
    assert torch.equal(maxima, block_maxima(values))
