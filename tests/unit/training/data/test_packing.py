import numpy as np
import pytest

from training.data.batch_plan import Side
from training.data.packing import BLOCK, FILLERS, pack, put_together, rows_for


def side(*lengths):
    return Side(np.arange(1, sum(lengths) + 1), np.array(lengths))


def test_sentences_stand_one_after_another_with_as_many_of_padding_behind_both_sides():
    batch = pack(side(2, 3), side(1, 2), pad_token_id=9)
    rest = BLOCK - 5
    assert batch.input_ids.tolist() == [1, 2, 3, 4, 5] + [9] * rest
    assert batch.source_places[:5].tolist() == [0, 1, 0, 1, 2]
    assert batch.source_sentences[:5].tolist() == [0, 0, 1, 1, 1]
    rest = BLOCK - 3
    assert batch.labels.tolist() == [1, 2, 3] + [-100] * rest
    assert batch.target_places[:3].tolist() == [0, 0, 1]
    assert batch.target_sentences[:3].tolist() == [0, 1, 1]
    for places, sentences, real in ((*batch[1:3], 5), (*batch[4:6], 3)):
        fillers, lengths = sentences[real:].unique(return_counts=True)
        assert fillers.tolist() == list(range(2, 2 + FILLERS))
        assert lengths.max() - lengths.min() <= 1
        assert places[real:].tolist() == [place for length in lengths.tolist() for place in range(length)]


@pytest.mark.parametrize("tokens", [1, BLOCK - FILLERS, BLOCK - FILLERS + 1, 2500, 4095, 4096, 8192, 23_000, 25_000])
def test_a_side_has_one_of_few_sizes_with_room_for_padding(tokens):
    rows = rows_for(tokens)
    assert rows % BLOCK == 0
    assert rows >= tokens + FILLERS
    assert rows == BLOCK or rows < (tokens + FILLERS) * 17 / 16 + BLOCK
    assert len(pack(side(tokens), side(1), 9).input_ids) == rows
    assert len({rows_for(each) for each in range(tokens, 2 * tokens)}) <= 32


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
