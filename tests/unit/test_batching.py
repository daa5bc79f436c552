import numpy as np
import pytest
import torch

from training.batching import collate, pad, plan_epoch, share


@pytest.fixture
def lengths():
    generator = np.random.default_rng(0)
    source = np.clip(generator.lognormal(3.1, 0.5, 20_000), 2, 256).astype(np.int32)
    return source, np.clip(source * generator.lognormal(0.05, 0.2, len(source)), 2, 256).astype(np.int32)


def test_every_pair_occurs_once_in_an_epoch(lengths):
    plan = plan_epoch(*lengths, max_tokens=1000, seed=1, epoch=0)
    assert np.array_equal(np.sort(np.concatenate(plan)), np.arange(len(lengths[0])))


def test_no_batch_exceeds_the_budget_of_either_side_and_batches_are_full(lengths):
    plan = plan_epoch(*lengths, max_tokens=1000, seed=1, epoch=0)
    filled = np.array([[side[batch].sum() for side in lengths] for batch in plan])
    assert filled.max() <= 1000
    assert np.median(filled.max(axis=1)) > 1000 - 256


def test_a_plan_depends_on_nothing_but_its_arguments(lengths):
    first, again = (plan_epoch(*lengths, max_tokens=1000, seed=1, epoch=3) for _ in range(2))
    assert all(map(np.array_equal, first, again))
    for seed, epoch in ((2, 3), (1, 4)):
        other = plan_epoch(*lengths, max_tokens=1000, seed=seed, epoch=epoch)
        assert not np.array_equal(first[0], other[0])


def test_batches_need_little_padding_and_come_in_random_order(lengths):
    plan = plan_epoch(*lengths, max_tokens=1000, seed=1, epoch=0)
    real = sum(side[batch].sum() for side in lengths for batch in plan)
    positions = sum(side[batch].max() * len(batch) for side in lengths for batch in plan)
    assert real / positions > 0.9
    means = np.array([lengths[0][batch].mean() for batch in plan])
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.1


def test_processes_share_a_batch_without_overlap():
    batch = np.arange(7)
    shares = [share(batch, process, 3) for process in range(3)]
    assert sorted(np.concatenate(shares)) == list(batch)
    assert [len(part) for part in shares] == [3, 2, 2]
    assert len(share(batch[:1], 1, 2)) == 0


def test_collate_marks_padding():
    batch = collate([[5, 6, 0], [7, 0]], [[8, 0], [9, 9, 9, 0]], pad_token_id=99)
    assert batch.input_ids.tolist() == [[5, 6, 0], [7, 0, 99]]
    assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch.labels.tolist() == [[8, 0, -100, -100], [9, 9, 9, 0]]
    assert pad([[]], 1).dtype == torch.int64
