"""A logits processor that lets a search write nothing but some tokens, such as those of a shortlist.

Axis letters: see `modeling_vaswani.py`.
"""

import math
from collections.abc import Sequence

import torch
from transformers import LogitsProcessor


class AllowedTokens(LogitsProcessor):
    """Rules out all other tokens; the probabilities of those that are allowed, and not yet ruled out, add up to 1.

    Every model takes it: ``generate(..., logits_processor=[AllowedTokens(ids)])``. The searches of our own models see
    it, and compute the logits of these tokens alone where nothing asks for the others. That is much faster, and gives
    the same result, as a softmax over a part of the logits gives what this one does.

    Parameters
    ----------
    ids : Tensor of shape (N,), or sequence of int
        In any order. ``</s>`` must be among them if sentences are to end.

    Raises
    ------
    ValueError
        If there is none, or one is no id.
    """

    def __init__(self, ids: torch.Tensor | Sequence[int]):
        given = torch.as_tensor(ids)
        if given.ndim != 1 or not len(given) or given.is_floating_point() or given.min() < 0:
            raise ValueError(f"ids={ids!r:.80} must be the ids of tokens: whole numbers from 0 on, at least one")
        self.ids = given.long().unique()  # in ascending order

    def check(self, vocab_size: int) -> None:
        """Refuse ids that a vocabulary does not have.

        Raises
        ------
        ValueError
            Naming the largest.
        """
        largest = int(self.ids[-1])
        if largest >= vocab_size:
            raise ValueError(f"ids must be below the vocabulary's size, {vocab_size:,}, but one is {largest:,}")

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the (R, V) log-probabilities of what follows the (R, T) ids, -inf where it is not allowed."""
        self.check(scores.shape[-1])
        ids = self.ids.to(scores.device)
        return torch.full_like(scores, -math.inf).index_copy_(1, ids, normalized(scores[:, ids]))


def normalized(scores: torch.Tensor) -> torch.Tensor:
    """Return the log-probabilities of (R, N) scores; -inf, not NaN, in a row that holds nothing else."""
    is_empty = scores.amax(-1, keepdim=True) == -math.inf
    return scores.log_softmax(-1).masked_fill(is_empty, -math.inf)


__all__ = ["AllowedTokens", "normalized"]
