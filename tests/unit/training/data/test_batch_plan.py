import numpy as np
import pytest
import torch

from training.benchmarks.planning import simulate_lengths
from training.data.batch_plan import Side, _sort_stably, collate, cut, padded_tokens, plan_epoch


@pytest.fixture
def lengths():
    generator = np.random.default_rng(0)
    source = np.clip(generator.lognormal(3.1, 0.5, 20_000), 2, 256).astype(np.int32)
    return source, np.clip(source * generator.lognormal(0.05, 0.2, len(source)), 2, 256).astype(np.int32)


def flat(plan):
    return [np.concatenate(groups) for groups in plan]


@pytest.mark.parametrize("length_groups", [1, 3])
def test_every_pair_occurs_once_in_an_epoch(lengths, length_groups):
    plan = plan_epoch(*lengths, max_tokens=1000, seed=1, epoch=0, length_groups=length_groups)
    assert np.array_equal(np.sort(np.concatenate(flat(plan))), np.arange(len(lengths[0])))


@pytest.mark.parametrize("length_groups", [1, 3])
def test_no_update_exceeds_the_budget_of_either_side_and_updates_are_full(lengths, length_groups):
    plan = plan_epoch(*lengths, max_tokens=1000, seed=1, epoch=0, length_groups=length_groups)
    filled = np.array([[side[update].sum() for side in lengths] for update in flat(plan)])
    assert filled.max() <= 1000
    assert np.median(filled.max(axis=1)) > 1000 - 256


@pytest.mark.parametrize("longest", [2**15 - 1, 2**15, 40_000])
def test_sentences_of_any_length_are_planned(longest):
    targets = np.array([longest, 5, longest - 1, 7, 6], dtype=np.int32)
    plan = plan_epoch(
        np.arange(2, 7, dtype=np.int32), targets, max_tokens=longest + 6, seed=1, epoch=0, length_groups=3
    )
    updates = flat(plan)
    assert sorted(np.concatenate(updates)) == [0, 1, 2, 3, 4]
    assert max(targets[update].sum() for update in updates) <= longest + 6


def test_a_plan_depends_on_nothing_but_its_arguments(lengths):
    first, again = (flat(plan_epoch(*lengths, max_tokens=1000, seed=1, epoch=3)) for _ in range(2))
    assert all(map(np.array_equal, first, again))
    for seed, epoch in ((2, 3), (1, 4), (3, 1), (4, 0)):
        other = flat(plan_epoch(*lengths, max_tokens=1000, seed=seed, epoch=epoch))
        assert not np.array_equal(first[0], other[0])


def density(lengths, batches):
    real = sum(side[batch].sum() for side in lengths for batch in batches)
    return real / sum(padded_tokens(batch, *lengths).sum() for batch in batches)


def test_updates_need_little_padding_and_come_in_random_order(lengths):
    updates = flat(plan_epoch(*lengths, max_tokens=1000, seed=1, epoch=0))
    assert density(lengths, updates) > 0.9
    means = np.array([lengths[0][update].mean() for update in updates])
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.1


@pytest.mark.parametrize("length_groups", [1, 8])
def test_of_lengths_like_those_of_wmt_at_most_three_percent_are_padding(length_groups):
    lengths = simulate_lengths(300_000)
    plan = plan_epoch(*lengths, max_tokens=25_000, seed=1, epoch=0, length_groups=length_groups)
    batches = [batch for groups in plan for batch in cut(groups, *lengths, max_padded_tokens=8192)]
    assert density(lengths, batches) > 0.97
    in_order_of_the_text = np.array_split(np.arange(len(lengths[0])), len(batches))
    assert density(lengths, in_order_of_the_text) < 0.6


def test_an_update_of_several_groups_mixes_lengths(lengths):
    spread = {}
    for length_groups in (1, 4):
        plan = plan_epoch(*lengths, max_tokens=2000, seed=1, epoch=0, length_groups=length_groups)
        spread[length_groups] = np.mean([np.ptp(lengths[0][update]) for update in flat(plan)])
    assert spread[4] > 2 * spread[1]


def test_a_group_always_holds_the_longest_pair(lengths):
    plan = plan_epoch(*lengths, max_tokens=300, seed=1, epoch=0, length_groups=8)
    assert max(len(groups) for groups in plan) == 1
    assert np.array_equal(np.sort(np.concatenate(flat(plan))), np.arange(len(lengths[0])))


@pytest.mark.parametrize(("max_padded_tokens", "num_processes"), [(10**6, 1), (300, 1), (300, 3), (10**6, 4)])
def test_what_an_update_holds_depends_neither_on_devices_nor_on_their_memory(
    lengths, max_padded_tokens, num_processes
):
    plan = plan_epoch(*lengths, max_tokens=1000, seed=1, epoch=0, length_groups=2)
    for groups in (plan[0], plan[len(plan) - 1]):
        batches = cut(groups, *lengths, max_padded_tokens, num_processes)
        assert sorted(np.concatenate(batches)) == sorted(np.concatenate(groups))
        assert len(batches) % num_processes == 0
        assert max(padded_tokens(batch, *lengths).max() for batch in batches) <= max_padded_tokens


def test_fewer_pairs_than_processes_leave_some_with_none():
    lengths = np.array([5, 6]), np.array([4, 7])
    batches = cut([np.array([0, 1])], *lengths, max_padded_tokens=10, num_processes=3)
    assert [len(batch) for batch in batches] == [1, 1, 0]


def test_collate_marks_padding():
    source = Side(np.array([5, 6, 0, 7, 0], dtype=np.int32), np.array([3, 2]))
    target = Side(np.array([8, 0, 9, 9, 9, 0], dtype=np.int32), np.array([2, 4]))
    batch = collate(source, target, pad_token_id=99)
    assert batch.input_ids.tolist() == [[5, 6, 0], [7, 0, 99]]
    assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch.labels.tolist() == [[8, 0, -100, -100], [9, 9, 9, 0]]
    assert {tensor.dtype for tensor in batch} == {torch.int64}


@pytest.mark.parametrize("block", [1, 1000, 2**21])
def test_sorting_in_blocks_is_a_stable_sort(lengths, block):
    order = np.random.default_rng(1).permutation(len(lengths[0])).astype(np.int32)
    expected = order[np.argsort(lengths[0][order], kind="stable")]
    assert np.array_equal(_sort_stably(order, lengths[0].astype(np.int16), block), expected)


@pytest.mark.parametrize("length_groups", range(1, 9))
def test_the_last_update_of_an_epoch_holds_the_groups_that_are_left(length_groups):
    pairs = np.full(10 * (3 * length_groups + 1), 10)  # ten to a group, of 100 tokens
    plan = plan_epoch(pairs, pairs, max_tokens=100 * length_groups, seed=1, epoch=0, length_groups=length_groups)
    assert [len(groups) for groups in plan] == [length_groups] * 3 + [1]
    assert sorted(np.concatenate(flat(plan))) == list(range(len(pairs)))


@pytest.mark.parametrize("full", [0, 1], ids=["source", "target"])
def test_a_pair_may_fill_the_whole_budget_and_no_more(full):
    lengths = [np.array([2, 3, 2]), np.array([3, 2, 2])]
    lengths[full][1] = 7
    plan = plan_epoch(*lengths, max_tokens=7, seed=1, epoch=0)
    assert sorted(sorted(update) for update in flat(plan)) == [[0, 2], [1]]
    batches = cut([np.arange(3)], *lengths, max_padded_tokens=7)
    assert [batch.tolist() for batch in batches] == [[0], [1], [2]]
    assert [batch.tolist() for batch in cut([np.array([0, 2])], *lengths, max_padded_tokens=6)] == [[0, 2]]
    with pytest.raises(AssertionError, match="longer than max_tokens"):
        plan_epoch(*lengths, max_tokens=6, seed=1, epoch=0)
    with pytest.raises(AssertionError, match="longer than max_padded_tokens"):
        cut([np.arange(3)], *lengths, max_padded_tokens=6)


def test_lengths_beyond_16_bits_are_sorted_too():
    lengths = np.array([40_000, 5, 70_000, 5]), np.array([3, 40_000, 3, 2])
    plan = plan_epoch(*lengths, max_tokens=70_000, seed=1, epoch=0)
    assert sorted(np.concatenate(flat(plan))) == [0, 1, 2, 3]
    assert max(side[update].sum() for side in lengths for update in flat(plan)) <= 70_000


def test_pairs_of_equal_lengths_meet_others_in_each_epoch():
    lengths = np.full(200, 5), np.full(200, 5)
    first, second = (plan_epoch(*lengths, max_tokens=50, seed=1, epoch=epoch) for epoch in (0, 1))
    together = [{frozenset(groups[0].tolist()) for groups in plan} for plan in (first, second)]
    assert len(together[0]) == 20
    assert len(together[0] & together[1]) < 5


def test_neighbours_differ_little_where_one_slice_of_sources_ends_and_the_next_begins():
    source, target = np.random.default_rng(0).integers(2, 50, (2, 3000))
    order = plan_epoch(source, target, max_tokens=2000, seed=1, epoch=0).order
    assert np.abs(np.diff(target[order])).max() < 10
