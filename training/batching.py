"""Which pairs go together (section 5.1): batches of a token budget, filled with pairs of similar length.

A plan is a pure function of lengths, budget, seed and epoch, so every process makes the same one and takes its share.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch


IGNORED_LABEL = -100


class Batch(NamedTuple):
    """One process's share of an update: three (B, S) or (B, T) tensors of ids, and what each side really holds."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    labels: torch.Tensor


def plan_epoch(
    source_lengths: np.ndarray, target_lengths: np.ndarray, max_tokens: int, seed: int, epoch: int
) -> list[np.ndarray]:
    """Divide all pairs into batches of at most `max_tokens` real tokens on either side.

    Parameters
    ----------
    source_lengths, target_lengths : ndarray of shape (N,)
        Tokens of each pair, ``</s>`` included.
    max_tokens : int
        Budget of a batch for each side, not smaller than any length.
    seed, epoch : int
        What the order depends on.

    Returns
    -------
    list of ndarray
        Indices of the pairs of each batch, batches in random order. Every pair occurs once.

    Notes
    -----
    Sorting by source length cuts the corpus into as many groups as each group then holds batches; within a group pairs
    are sorted by target length, up and down in turn. So neighbors differ little on both sides and batches need little
    padding; pairs of equal lengths stand in random order.
    """
    generator = np.random.default_rng([seed, epoch])
    order = generator.permutation(len(source_lengths))
    order = order[np.argsort(source_lengths[order], kind="stable")]
    batch_count = max(source_lengths.sum(), target_lengths.sum()) / max_tokens
    group = np.arange(len(order)) * max(1, int(batch_count**0.5)) // len(order)
    target = target_lengths[order]
    order = order[np.lexsort((np.where(group % 2, target, -target), group))]
    filled = [np.concatenate([[0], np.cumsum(lengths[order])]) for lengths in (source_lengths, target_lengths)]
    batches, start = [], 0
    while start < len(order):
        end = min(int(np.searchsorted(total, total[start] + max_tokens, side="right")) - 1 for total in filled)
        batches.append(order[start:end])
        start = end
    return [batches[index] for index in generator.permutation(len(batches))]


def share(batch: np.ndarray, process_index: int, num_processes: int) -> np.ndarray:
    """Return the pairs of a batch that one of several processes trains on; none where there are fewer pairs."""
    return batch[process_index::num_processes]


def pad(rows: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    """Stack rows of ids into (B, longest), filled up with `value`."""
    padded = torch.full((len(rows), max(map(len, rows), default=1)), value)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = torch.as_tensor(row)
    return padded


def collate(input_ids: Sequence[Sequence[int]], labels: Sequence[Sequence[int]], pad_token_id: int) -> Batch:
    """Pad the encoded pairs of a batch into tensors; padding has mask 0 and label -100."""
    source = pad(input_ids, pad_token_id)
    lengths = torch.tensor([len(row) for row in input_ids])
    attention_mask = (torch.arange(source.shape[1]) < lengths[:, None]).long()
    return Batch(source, attention_mask, pad(labels, IGNORED_LABEL))
