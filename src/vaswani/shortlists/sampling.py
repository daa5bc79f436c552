"""The pairs that a shortlist is learned from: as many as its statistic needs, of a text of any size."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from vaswani.errors import UserError

from .alignment import Pairs


SENTENCES_PER_TYPE = 300  # from which the likely translations of a source type are learned
LONGEST = 256  # tokens of a sentence: the work grows with the product of both lengths
BLOCK = 4096  # pairs that are encoded at a time


def sample(
    tokenizer: Any,
    rows: Any,
    on_pairs: Callable[[int], object] = lambda count: None,
) -> tuple[Pairs, torch.Tensor]:
    """Encode parallel text, and keep the pairs that hold a source type of which fewer than 300 were kept before.

    So what is kept grows with the vocabulary, not with the text: of 4.5 million pairs, those that tell something new.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
    rows : Dataset
        With columns `source` and `target`.
    on_pairs : callable, optional
        Called with the number of pairs of each block.

    Returns
    -------
    pairs : Pairs
    counts : Tensor of shape (V,)
        How often each type stands in all targets.

    Raises
    ------
    UserError
        If no pair is left: all have an empty side, or one of more than 256 tokens.
    """
    kept, counts = np.zeros(len(tokenizer), dtype=np.int64), np.zeros(len(tokenizer), dtype=np.int64)
    blocks: list[tuple[list[np.ndarray], list[np.ndarray]]] = []
    for block in rows.iter(BLOCK):
        texts = zip(block["source"], block["target"], strict=True)
        full = [pair for pair in texts if all(side and side.strip() for side in pair)]
        if full:
            sources, targets = (
                encode(tokenizer, **{name: [pair[side] for pair in full]})
                for side, name in enumerate(("text", "text_target"))
            )
            counts += np.bincount(np.concatenate(targets), minlength=len(counts))
            chosen = choose(sources, targets, kept, SENTENCES_PER_TYPE)
            blocks.append(tuple(join([side[row] for row in chosen]) for side in (sources, targets)))
        on_pairs(len(block["source"]))
    if not any(len(lengths) for (_, lengths), _ in blocks):
        raise UserError(f"the text holds no pair to learn from: both sides must have 1 to {LONGEST} tokens")
    parts = [[block[side][part] for block in blocks] for part in (0, 1) for side in (0, 1)]
    return Pairs(*(torch.from_numpy(np.concatenate(arrays)) for arrays in parts)), torch.from_numpy(counts)


def encode(tokenizer: Any, **sentences: list[str]) -> list[np.ndarray]:
    """Return the ids of each sentence of `text` or `text_target`: OPUS-MT's tokenizers differ for the two sides."""
    return [np.array(ids, dtype=np.int32) for ids in tokenizer(**sentences, verbose=False).input_ids]


def choose(
    sources: list[np.ndarray], targets: list[np.ndarray], kept: np.ndarray, sentences_per_type: int
) -> list[int]:
    """Return the indices of the pairs to keep, and count in `kept` the sentences that hold each source type."""
    chosen = []
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        if max(len(source), len(target)) <= LONGEST and (kept[source] < sentences_per_type).any():
            kept[np.unique(source)] += 1
            chosen.append(row)
    return chosen


def join(sentences: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of all sentences, one after the other, and the lengths."""
    lengths = np.array([len(ids) for ids in sentences], dtype=np.int64)
    return np.concatenate([np.empty(0, dtype=np.int32), *sentences]), lengths
