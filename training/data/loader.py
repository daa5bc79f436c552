"""From plan to tensors: this process's share of one update after another, without end."""

import itertools
import signal
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from datasets import Dataset
from torch.utils.data import DataLoader

from training.data.batch_plan import IGNORED_LABEL, Batch, Side, collate, cut, padded_tokens, plan_epoch
from training.data.packing import PackedBatch, pack, put_together
from training.data.preparation import lengths, read_pairs
from training.settings import OptimizationSettings
from vaswani.errors import UserError


ALL = slice(None)  # pairs of an epoch


class Update(NamedTuple):
    """One optimizer update as this process sees it.

    Attributes
    ----------
    epoch : int
        Epoch, counted from 0.
    index : int
        Place in the epoch, counted from 1.
    epoch_length : int
        Updates of the epoch.
    target_tokens, real_tokens, padded_tokens : int
        Targets, tokens of both sides, and the same with padding, over all processes.
    pairs : list of ndarray
        Pair indices of each micro-batch of this process.
    batches : list of Batch or of PackedBatch
        The same micro-batches as tensors, fewer if they are packed; empty until they are loaded.
    """

    epoch: int
    index: int
    epoch_length: int
    target_tokens: int
    real_tokens: int
    padded_tokens: int
    pairs: list[np.ndarray]
    batches: list[Batch] | list[PackedBatch]


def plan_updates(
    lengths: tuple[np.ndarray, np.ndarray],
    settings: OptimizationSettings,
    process_index: int,
    num_processes: int,
    start: tuple[int, int] = (0, 0),
) -> Iterator[Update]:
    """Yield updates without their tensors, beginning after `start`: an epoch, and how many of its updates are done.

    Raises
    ------
    UserError
        If the curriculum leaves no pair.
    """
    first_epoch, done = start
    for epoch in itertools.count(first_epoch):
        kept = curriculum(lengths, settings, epoch)
        sides = [side[kept] for side in lengths]
        plan = plan_epoch(*sides, settings.max_tokens_per_batch, settings.seed, epoch, settings.length_groups)
        plan = replace(plan, order=plan.order if kept is ALL else kept[plan.order])
        for number in range(done, len(plan)):
            batches = cut(plan[number], *lengths, settings.tokens_of_pairs_per_device, num_processes)
            pairs = np.concatenate(batches)
            yield Update(
                epoch=epoch,
                index=number + 1,
                epoch_length=len(plan),
                target_tokens=int(lengths[1][pairs].sum()),
                real_tokens=int(sum(side[pairs].sum() for side in lengths)),
                padded_tokens=int(sum(padded_tokens(batch, *lengths).sum() for batch in batches)),
                pairs=batches[process_index::num_processes],
                batches=[],
            )
        done = 0


def curriculum(
    lengths: tuple[np.ndarray, np.ndarray], settings: OptimizationSettings, epoch: int
) -> np.ndarray | slice:
    """Return which pairs an epoch has: the first ones have only short pairs, if the settings say so.

    Raises
    ------
    UserError
        If it would have none.
    """
    if settings.curriculum_epochs is None or epoch >= settings.curriculum_epochs:
        return ALL
    longer = np.maximum(*lengths)
    pairs = np.flatnonzero(longer <= settings.curriculum_length)
    if not len(pairs):
        raise UserError(
            f"curriculum_length={settings.curriculum_length} leaves no pair to train on: it must be at least "
            f"{longer.min()}, the length of the shortest"
        )
    return pairs


class _Pairs(torch.utils.data.Dataset):
    """Reads and lays out the pairs of an update; the plan is its sampler."""

    def __init__(self, rows: Dataset, pad_token_id: int, packed_tokens: int | None):
        self.rows = rows.with_format("arrow")  # it takes a millisecond
        self.pad_token_id = pad_token_id
        self.lengths = lengths(rows) if packed_tokens else None
        self.packed_tokens = packed_tokens

    def __getitem__(self, index: Update) -> Update:
        update = index  # the sampler's indices are whole updates
        if self.packed_tokens is None:
            return update._replace(batches=[collate(*self._read(pairs), self.pad_token_id) for pairs in update.pairs])
        together = put_together(update.pairs, self.lengths, self.packed_tokens)
        return update._replace(batches=[pack(*self._read(pairs), self.pad_token_id) for pairs in together])

    def _read(self, indices: np.ndarray) -> tuple[Side, Side]:
        if len(indices):
            return read_pairs(self.rows, indices)
        # Every process must take part in an update: this batch has no target.
        source, target = (Side(np.array([filler]), np.array([1])) for filler in (self.pad_token_id, IGNORED_LABEL))
        return source, target


def load_updates(
    updates: Iterable[Update], rows: Dataset, pad_token_id: int, num_workers: int, packed_tokens: int | None = None
) -> Iterator[Update]:
    """Fill in the tensors of planned updates, ahead of their use in `num_workers` processes.

    With `packed_tokens`, sentences stand one after another, and micro-batches are merged up to this many tokens.
    """
    loader = DataLoader(
        _Pairs(rows, pad_token_id, packed_tokens),
        sampler=updates,
        batch_size=None,
        num_workers=num_workers,
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=_leave_signals_to_the_parent,
    )
    return iter(loader)


def _leave_signals_to_the_parent(worker: int) -> None:
    """Ignore what asks a whole process group to end: the parent still needs updates, and ends its workers itself."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def load_batches(rows: Dataset, max_padded_tokens: int, pad_token_id: int) -> Iterator[Batch]:
    """Yield all pairs once, in batches that fit a device; for evaluation, so their order is the same each time."""
    sides, rows = lengths(rows), rows.with_format("arrow")
    for groups in plan_epoch(*sides, max_padded_tokens, seed=0, epoch=0):
        for indices in cut(groups, *sides, max_padded_tokens):
            yield collate(*read_pairs(rows, indices), pad_token_id)
