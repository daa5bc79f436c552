import itertools
import multiprocessing
import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest
from datasets import Dataset

from training.data.batch_plan import padded_tokens
from training.data.loader import load_batches, load_updates, plan_updates
from training.data.packing import FILLERS
from training.settings import OptimizationSettings
from vaswani.errors import UserError


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """Fail where updates would never come."""

    def fail(*_):
        raise TimeoutError("no update came in a minute")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def rows():
    generator = np.random.default_rng(0)
    sides = [[[*range(1, length), 0] for length in generator.integers(2, 30, 300)] for _ in range(2)]
    columns = {"input_ids": sides[0], "labels": sides[1]}
    for name, side in zip(("source", "target"), sides, strict=True):
        columns[f"{name}_length"] = list(map(len, side))
    return Dataset.from_dict(columns)


def lengths_of(rows):
    return tuple(np.array([len(row) for row in rows[side]]) for side in ("input_ids", "labels"))


def take(rows, count, start=(0, 0), process=0, processes=1, **settings):
    given = {"max_tokens_per_batch": 400, "max_tokens_per_device": 150, "length_groups": 2} | settings
    planned = plan_updates(lengths_of(rows), OptimizationSettings(**given), process, processes, start)
    return list(itertools.islice(planned, count))


def test_starting_in_the_middle_gives_what_would_have_come(rows):
    whole = take(rows, 60)
    assert whole[-1].epoch > 0
    for at in (1, 17, len(whole) - 2):
        done = whole[at - 1]
        [following] = take(rows, 1, start=(done.epoch, done.index))
        assert following[:6] == whole[at][:6]
        assert all(map(np.array_equal, following.pairs, whole[at].pairs))


def test_processes_share_an_update_with_equal_counts_and_no_overlap(rows):
    for together, *shares in zip(
        *[take(rows, 5)], *[take(rows, 5, process=p, processes=3) for p in range(3)], strict=True
    ):
        assert len({len(share.pairs) for share in shares}) == 1
        pairs = np.concatenate([indices for share in shares for indices in share.pairs])
        assert sorted(pairs) == sorted(np.concatenate(together.pairs))
        assert {share.target_tokens for share in shares} == {together.target_tokens}


def test_counts_are_those_of_the_text(rows):
    source, target = lengths_of(rows)
    for update in take(rows, 5):
        pairs = np.concatenate(update.pairs)
        assert update.target_tokens == target[pairs].sum()
        assert update.real_tokens == source[pairs].sum() + target[pairs].sum()
        assert update.real_tokens < update.padded_tokens


@pytest.mark.parametrize("workers", [0, 2])
def test_tensors_hold_the_planned_pairs_in_order(rows, workers):
    planned = take(rows, 4)
    for update, loaded in zip(planned, load_updates(planned, rows, 99, workers), strict=True):
        assert loaded.index == update.index
        for indices, batch in zip(update.pairs, loaded.batches, strict=True):
            assert [row[row != 99].tolist() for row in batch.input_ids] == rows[indices]["input_ids"]
            assert [row[row != -100].tolist() for row in batch.labels] == rows[indices]["labels"]


@pytest.mark.parametrize("workers", [0, 2])
def test_packed_tensors_hold_the_planned_pairs_in_order_in_fewer_batches(rows, workers):
    planned = take(rows, 4)
    for update, loaded in zip(planned, load_updates(planned, rows, 99, workers, packed_tokens=400), strict=True):
        assert len(loaded.batches) < len(update.pairs)
        pairs = rows[np.concatenate(update.pairs)]
        for side, name in enumerate(("input_ids", "labels")):
            found = [
                batch[3 * side][batch[3 * side + 2] == number].tolist()
                for batch in loaded.batches
                for number in range(batch[3 * side + 2].max() + 1 - FILLERS)
            ]
            assert found == pairs[name]


def test_signals_to_all_processes_end_no_worker(rows):
    planned = take(rows, 30)
    updates = load_updates(planned, rows, 99, 1)
    assert next(updates).index == planned[0].index
    [worker] = multiprocessing.active_children()
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(worker.pid, number)
    assert [update.index for update in updates] == [update.index for update in planned[1:]]


def test_a_process_without_pairs_gets_a_batch_that_teaches_nothing(rows):
    few = rows.select(range(2))
    planned = take(few, 1, process=2, processes=3, max_tokens_per_device=8192)
    for packed_tokens in (None, 100):
        [update] = load_updates(planned, few, 99, 0, packed_tokens)
        assert (update.batches[0].labels == -100).all()
    assert update.target_tokens > 0


@pytest.mark.parametrize("left", [0, 1, 3])
def test_a_resumed_epoch_is_followed_by_a_whole_one(rows, left):
    first = next(iter(take(rows, 1))).epoch_length
    whole = take(rows, first + 30)
    resumed = take(rows, left + 30, start=(0, first - left))
    assert [(update.epoch, update.index) for update in resumed[left:][:2]] == [(1, 1), (1, 2)]
    for update, expected in zip(resumed, whole[first - left :], strict=True):
        assert update[:6] == expected[:6]
        assert all(map(np.array_equal, update.pairs, expected.pairs))


def test_updates_follow_the_settings(rows):
    given = {"max_tokens_per_batch": 200, "max_tokens_per_device": 60, "length_groups": 1, "seed": 1}
    source, target = lengths_of(rows)
    first = take(rows, 1, **given)[0]
    assert max(len(pairs) * max(source[pairs].max(), target[pairs].max()) for pairs in first.pairs) <= 60
    pairs = np.concatenate(first.pairs)
    assert max(source[pairs].sum(), target[pairs].sum()) <= 200
    assert first.epoch_length < take(rows, 1, **given | {"max_tokens_per_batch": 100})[0].epoch_length
    for changed in ({"seed": 2}, {"length_groups": 2}):
        other = take(rows, 1, **given | changed)[0]
        assert not np.array_equal(np.sort(np.concatenate(other.pairs)), np.sort(pairs))


def test_r_drop_halves_what_a_device_computes_at_a_time(rows):
    def widest(**settings):
        sides = lengths_of(rows)
        return max(
            padded_tokens(pairs, *sides).max() for update in take(rows, 9, **settings) for pairs in update.pairs
        )

    assert widest(rdrop_alpha=5.0) <= 75 < widest() <= 150


def test_padded_tokens_are_those_of_all_micro_batches(rows):
    source, target = lengths_of(rows)
    shares = [take(rows, 1, process=process, processes=2)[0] for process in range(2)]
    batches = [pairs for share in shares for pairs in share.pairs]
    expected = sum(len(pairs) * (source[pairs].max() + target[pairs].max()) for pairs in batches)
    assert [share.padded_tokens for share in shares] == [expected] * 2


def test_batches_of_an_evaluation_hold_every_pair_once_and_are_the_same_each_time(rows):
    found = []
    for input_ids, attention_mask, labels in load_batches(rows, 150, 99):
        assert max(input_ids.numel(), labels.numel()) <= 150
        found += [
            (ids[mask == 1].tolist(), target[target != -100].tolist())
            for ids, mask, target in zip(input_ids, attention_mask, labels, strict=True)
        ]
    assert sorted(found) == sorted(zip(rows["input_ids"], rows["labels"], strict=True))
    first, second = ([batch.labels for batch in load_batches(rows, 150, 99)] for _ in range(2))
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))


def test_the_first_epochs_have_only_short_pairs(rows):
    sides = lengths_of(rows)
    longer = np.maximum(*sides)
    settings = {"curriculum_epochs": 2, "curriculum_length": 12}
    updates = take(rows, 120, **settings)
    of_epoch = [
        [pair for update in updates if update.epoch == epoch for pair in np.concatenate(update.pairs)]
        for epoch in range(3)
    ]
    for short in of_epoch[:2]:
        assert sorted(short) == list(np.flatnonzero(longer <= 12))
    assert of_epoch[0] != of_epoch[1]
    assert sorted(of_epoch[2]) == list(range(300))
    for update in updates:
        assert update.target_tokens == sides[1][np.concatenate(update.pairs)].sum()
    at = next(number for number, update in enumerate(updates) if update.epoch == 1) + 1
    [again] = take(rows, 1, start=(1, 1), **settings)
    assert all(map(np.array_equal, again.pairs, updates[at].pairs))


def test_a_curriculum_that_leaves_nothing_is_refused(rows):
    with pytest.raises(UserError, match=r"curriculum_length=2 leaves no pair .* at least [3-9], the length"):
        take(rows, 1, curriculum_epochs=1, curriculum_length=2)
