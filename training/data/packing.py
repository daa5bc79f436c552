"""A batch without padding, for training on a GPU: all sentences one after another."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from training.data.batch_plan import IGNORED_LABEL, Side


# Rows of a packed side are a multiple of this: the blocks of attention, and sizes for which products are fast.
BLOCK = 128
# They are also a multiple of the power of two that is a 16th to a 32nd of them: so the same sizes come again and
# again, and 2 or 3% of the rows are padding.
PARTS = 16
# Sentences of padding on either side, among which attention, which grows with the square of a sentence, takes no time.
FILLERS = 16


class PackedBatch(NamedTuple):
    """A micro-batch whose sentences stand one after another: N rows of sources and M of targets.

    Behind them stand more sentences, as many on either side, of padding or of labels that are ignored, which make N
    and M what `rows_for` says.

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
    return PackedBatch(*_in_a_row(source, pad_token_id), *_in_a_row(target, IGNORED_LABEL))


def _in_a_row(side: Side, filler: int) -> tuple[torch.Tensor, ...]:
    """Return ids, places and sentences, with those of padding behind the others."""
    rows = rows_for(len(side.ids))
    ends = np.linspace(len(side.ids), rows, FILLERS + 1, dtype=np.int64)
    lengths = np.append(side.lengths, np.diff(ends))
    starts = np.cumsum(lengths) - lengths
    ids = np.full(rows, filler, dtype=np.int64)
    ids[: len(side.ids)] = side.ids
    places = np.arange(rows) - np.repeat(starts, lengths)
    sentences = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    return torch.from_numpy(ids), torch.from_numpy(places), torch.from_numpy(sentences)


def rows_for(tokens: int) -> int:
    """Return how many rows a side has, of so many tokens and the padding behind them."""
    step = 1 << max(BLOCK, tokens // PARTS).bit_length() - 1
    return -(-(tokens + FILLERS) // step) * step


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
