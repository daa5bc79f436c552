import numpy as np
import pytest

from training.data.batch_plan import Side
from training.data.packing import BLOCK, pack, put_together


def side(*lengths):
    return Side(np.arange(1, sum(lengths) + 1), np.array(lengths))


def test_sentences_stand_one_after_another_with_one_more_behind_them():
    batch = pack(side(2, 3), side(1, 2), pad_token_id=9)
    rest = BLOCK - 5
    assert batch.input_ids.tolist() == [1, 2, 3, 4, 5] + [9] * rest
    assert batch.source_places.tolist() == [0, 1, 0, 1, 2, *range(rest)]
    assert batch.source_sentences.tolist() == [0, 0, 1, 1, 1] + [2] * rest
    rest = BLOCK - 3
    assert batch.labels.tolist() == [1, 2, 3] + [-100] * rest
    assert batch.target_places.tolist() == [0, 0, 1, *range(rest)]
    assert batch.target_sentences.tolist() == [0, 1, 1] + [2] * rest


@pytest.mark.parametrize(("source", "target"), [(1, 1), (BLOCK, 1), (BLOCK - 1, BLOCK), (3 * BLOCK, 2 * BLOCK + 5)])
def test_both_sides_are_multiples_of_a_block_with_room_for_one_more(source, target):
    batch = pack(side(source), side(target), pad_token_id=9)
    rows = len(batch.input_ids), len(batch.labels)
    assert rows[0] % BLOCK == rows[1] % BLOCK == 0
    assert source < rows[0] <= source + BLOCK
    assert target < rows[1] <= target + BLOCK


def test_micro_batches_are_put_together_while_both_sides_fit():
    lengths = np.array([3, 1, 1, 1, 5]), np.array([1, 2, 2, 4, 1])
    batches = [np.array([number]) for number in range(5)]

    def together(max_tokens):
        return [batch.tolist() for batch in put_together(batches, lengths, max_tokens)]

    assert together(5) == [[0, 1, 2], [3], [4]]  # with a fourth, targets would be 9
    assert together(6) == [[0, 1, 2], [3, 4]]
    assert together(100) == [[0, 1, 2, 3, 4]]
    assert together(1) == [[0], [1], [2], [3], [4]]


def test_order_and_parts_of_micro_batches_stay():
    lengths = np.ones(6, int), np.ones(6, int)
    found = put_together([np.array([4, 1]), np.array([0, 5]), np.array([2])], lengths, 4)
    assert [batch.tolist() for batch in found] == [[4, 1, 0, 5], [2]]
