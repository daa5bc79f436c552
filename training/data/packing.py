"""A batch without padding, for training on a GPU: all sentences one after another."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from training.data.batch_plan import IGNORED_LABEL, Side


# Rows of a packed side are a multiple of this: the blocks of attention, and sizes for which products are fast.
BLOCK = 128


class PackedBatch(NamedTuple):
    """A micro-batch whose sentences stand one after another: N rows of sources and M of targets.

    Behind them stands one more sentence on either side, of padding or of labels that are ignored, which makes N and M
    multiples of `BLOCK`.

    Attributes
    ----------
    input_ids, labels : Tensor of shape (N,) and (M,)
        Ids of sources and of targets.
    source_places, target_places : Tensor of shape (N,) and (M,)
        The place of each row in its sentence, from 0 on.
    source_sentences, target_sentences : Tensor of shape (N,) and (M,)
        The number of each row's sentence, from 0 on.
    """

    input_ids: torch.Tensor
    source_places: torch.Tensor
    source_sentences: torch.Tensor
    labels: torch.Tensor
    target_places: torch.Tensor
    target_sentences: torch.Tensor


def pack(source: Side, target: Side, pad_token_id: int) -> PackedBatch:
    """Lay out the encoded pairs of a batch one after another."""
    rows = [(len(side.ids) // BLOCK + 1) * BLOCK for side in (source, target)]
    return PackedBatch(*_in_a_row(source, rows[0], pad_token_id), *_in_a_row(target, rows[1], IGNORED_LABEL))


def _in_a_row(side: Side, rows: int, filler: int) -> tuple[torch.Tensor, ...]:
    """Return ids, places and sentences, with the one more sentence behind the others."""
    lengths = np.append(side.lengths, rows - len(side.ids))
    starts = np.cumsum(lengths) - lengths
    ids = np.full(rows, filler, dtype=np.int64)
    ids[: len(side.ids)] = side.ids
    places = np.arange(rows) - np.repeat(starts, lengths)
    sentences = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    return torch.from_numpy(ids), torch.from_numpy(places), torch.from_numpy(sentences)


def put_together(
    batches: Sequence[np.ndarray], lengths: tuple[np.ndarray, np.ndarray], max_tokens: int
) -> list[np.ndarray]:
    """Put micro-batches together, where they have at most `max_tokens` real tokens on either side."""
    together: list[np.ndarray] = []
    for batch in batches:
        longer = np.concatenate([*together[-1:], batch])
        if together and all(side[longer].sum() <= max_tokens for side in lengths):
            together[-1] = longer
        else:
            together.append(batch)
    return together
