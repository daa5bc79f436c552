"""Which pairs go together (section 5.1): updates of a token budget, made of groups of pairs of similar length.

A plan is a pure function of lengths, budget, seed and epoch, so every process makes the same one and takes its share.
Devices and their memory decide only how an update is cut into micro-batches, never which pairs it holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch


IGNORED_LABEL = -100


class Side(NamedTuple):
    """One language of some pairs: the ids of all sentences, one after another, and the length of each sentence."""

    ids: np.ndarray
    lengths: np.ndarray


class Batch(NamedTuple):
    """A micro-batch: padded ids of the sources with their mask, (B, S), and of the targets, (B, T)."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    labels: torch.Tensor


@dataclass(frozen=True)
class EpochPlan:
    """The updates of an epoch: ``plan[i]`` is a list of groups, each an array of pair indices.

    Parameters
    ----------
    order : ndarray of shape (N,)
        Pair indices, group after group.
    group_starts : ndarray of shape (groups + 1,)
        Where each group starts in `order`, and where the last one ends.
    updates : list of ndarray
        The numbers of each update's groups.
    """

    order: np.ndarray
    group_starts: np.ndarray
    updates: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.updates)

    def __getitem__(self, update: int) -> list[np.ndarray]:
        starts = self.group_starts
        return [self.order[starts[group] : starts[group + 1]] for group in self.updates[update]]


def plan_epoch(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    max_tokens: int,
    seed: int,
    epoch: int,
    length_groups: int = 1,
) -> EpochPlan:
    """Divide all pairs into updates of at most `max_tokens` real tokens on either side.

    Parameters
    ----------
    source_lengths, target_lengths : ndarray of shape (N,)
        Tokens of each pair, ``</s>`` included.
    max_tokens : int
        Budget of an update for each side, not smaller than any length.
    seed, epoch : int
        Seeds of the random order.
    length_groups : int, default=1
        Groups in an update, drawn from all lengths; fewer if such a group could not hold the longest pair.

    Returns
    -------
    EpochPlan
        Every pair occurs once; groups come in random order.

    Notes
    -----
    Pairs are sorted by source length and cut into slices. Each slice is sorted by target length, ascending and
    descending in turn, so that neighbors differ little on both sides and groups need little padding. Pairs of equal
    lengths stand in random order. There are four times as many slices as groups in a slice, because sources differ
    more than the targets of similar sources. Lengths below 32,768 are sorted as 16-bit integers, for which NumPy has a
    radix sort.
    """
    longest = int(max(source_lengths.max(), target_lengths.max()))
    length_groups = possible_groups(length_groups, longest, max_tokens)
    group_tokens = max_tokens // length_groups
    dtype = np.int16 if longest < 2**15 else np.int32
    lengths = source_lengths.astype(dtype, copy=False), target_lengths.astype(dtype, copy=False)
    group_count = max(side.sum(dtype=np.int64) for side in lengths) / group_tokens
    generator = np.random.default_rng([seed, epoch])
    order = _sort_by_lengths(*lengths, max(1, int(2 * group_count**0.5)), generator)
    group_starts = _fill_groups(order, lengths, group_tokens)
    shuffled = generator.permutation(len(group_starts) - 1)
    updates = [shuffled[first : first + length_groups] for first in range(0, len(shuffled), length_groups)]
    return EpochPlan(order, group_starts, updates)


def possible_groups(length_groups: int, longest: int, max_tokens: int) -> int:
    """Return how many groups an update has: no more than can each hold the longest sentence, but at least one."""
    return max(1, min(length_groups, max_tokens // longest))


def _sort_by_lengths(
    source_lengths: np.ndarray, target_lengths: np.ndarray, slices: int, generator: np.random.Generator
) -> np.ndarray:
    order = np.arange(len(source_lengths), dtype=np.int32)
    generator.shuffle(order)
    order = _sort_stably(order, source_lengths)
    borders = _slice_borders(np.bincount(source_lengths), slices)
    for number, part in enumerate(np.split(order, borders)):  # views into order
        target = target_lengths[part]
        part[:] = part[np.argsort(-target if number % 2 else target, kind="stable")]
    return order


def _slice_borders(counts: np.ndarray, slices: int) -> np.ndarray:
    """Return where to cut pairs that are sorted by length into at most `slices`, given how many have each length.

    The padding of a slice grows with its tokens times its width relative to its lengths. The sum over slices is
    smallest if their density follows the square root of the tokens on a logarithmic scale of lengths, that is, if each
    slice has an equal share of the sum of the square roots of `counts`.
    """
    weights = np.sqrt(counts)
    middles = np.cumsum(weights) - weights / 2
    numbers = (middles * (slices / weights.sum())).astype(np.int64)  # the slice that each length belongs to
    return np.cumsum(counts)[np.flatnonzero(np.diff(numbers))]


def _sort_stably(order: np.ndarray, lengths: np.ndarray, block: int = 2**21) -> np.ndarray:
    """Return ``order[np.argsort(lengths[order], kind="stable")]`` block by block.

    The argsort of all pairs would take 8 bytes for each, most of a plan's memory.
    """
    blocks = [order[first : first + block] for first in range(0, len(order), block)]
    counts = np.array([np.bincount(lengths[part], minlength=lengths.max() + 1) for part in blocks])  # of each length
    before = np.cumsum(counts, axis=0) - counts + (np.cumsum(counts.sum(0)) - counts.sum(0))
    result = np.empty_like(order)
    for part, count, first in zip(blocks, counts, before, strict=True):
        ranks = np.argsort(lengths[part], kind="stable")
        result[np.arange(len(part)) + np.repeat(first - (np.cumsum(count) - count), count)] = part[ranks]
    return result


def _fill_groups(order: np.ndarray, lengths: tuple[np.ndarray, np.ndarray], max_tokens: int) -> np.ndarray:
    """Return where in `order` each group starts if every group takes all that fits, and where the last one ends."""
    starts = [0]
    while starts[-1] < len(order):
        window = order[starts[-1] : starts[-1] + max_tokens]  # every pair has at least one token on each side
        ends = (np.searchsorted(np.cumsum(side[window], dtype=np.int64), max_tokens, "right") for side in lengths)
        size = int(min(ends))
        assert size, "a pair is longer than max_tokens"
        starts.append(starts[-1] + size)
    return np.array(starts)


def cut(
    groups: Sequence[np.ndarray],
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    max_padded_tokens: int,
    num_processes: int = 1,
) -> list[np.ndarray]:
    """Cut the groups of an update into micro-batches that fit a device, the same number for every process.

    Parameters
    ----------
    groups : sequence of ndarray
        Pair indices.
    source_lengths, target_lengths : ndarray of shape (N,)
    max_padded_tokens : int
        Tokens, padding included, that a micro-batch may have on either side; not smaller than any length.
    num_processes : int, default=1
        The number of micro-batches is a multiple of it. Process p takes those at p, p + `num_processes`, ...

    Returns
    -------
    list of ndarray
        Pair indices. Where there are fewer pairs than processes, some are empty.
    """
    single_pairs = max(map(len, groups))  # with this many parts, each holds at most one pair
    for parts in range(1, single_pairs + num_processes):
        if len(groups) * parts % num_processes == 0:
            batches = [part for group in groups for part in np.array_split(group, parts)]
            if all(padded_tokens(part, source_lengths, target_lengths).max() <= max_padded_tokens for part in batches):
                return batches
    raise AssertionError("a pair is longer than max_padded_tokens")


def padded_tokens(batch: np.ndarray, source_lengths: np.ndarray, target_lengths: np.ndarray) -> np.ndarray:
    """Return how many tokens, padding included, a batch has on the source and on the target side."""
    longest = [int(lengths[batch].max(initial=0)) for lengths in (source_lengths, target_lengths)]
    return len(batch) * np.array(longest)


def collate(source: Side, target: Side, pad_token_id: int) -> Batch:
    """Pad the encoded pairs of a batch into tensors; padding has mask 0 and label -100."""
    input_ids = _pad(source, pad_token_id)
    attention_mask = torch.from_numpy(_is_real(source).astype(np.int64))
    return Batch(input_ids, attention_mask, _pad(target, IGNORED_LABEL))


def _is_real(side: Side) -> np.ndarray:
    return np.arange(side.lengths.max(initial=1)) < side.lengths[:, None]


def _pad(side: Side, value: int) -> torch.Tensor:
    """Return the ids as a (B, longest) tensor, each row padded with `value`."""
    is_real = _is_real(side)
    padded = np.full(is_real.shape, value, dtype=np.int64)
    padded[is_real] = side.ids
    return torch.from_numpy(padded)
