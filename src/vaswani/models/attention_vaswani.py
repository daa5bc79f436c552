"""Attention as a function of queries, keys and values: section 3.2.1, and restricted to a neighborhood: section 4.

Axis letters: see `modeling_vaswani.py`. Here also N blocks of queries, and W keys that a block may see.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs


# Fewest queries of a block. Smaller ones would leave matrix products too small to be fast.
MIN_BLOCK = 32
# Fewest scores of a row of which a CPU's vectors, in float32, make a softmax.
MIN_SCORES = 16


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scaled dot-product attention: softmax(Q K^T / sqrt(d_k)) V, Eq. 1 of section 3.2.1.

    Parameters
    ----------
    module : nn.Module
        Supplies `training`, and d_k where `scaling` is None.
    query, key : Tensor of shape (B, H, T, d_k) and (B, H, S, d_k)
    value : Tensor of shape (B, H, S, d_v)
    attention_mask : Tensor broadcastable to (B, H, T, S), or None
        Added to the scores: 0 where attention is legal, the lowest float where not.
    scaling : float, default=None
        None means 1 / sqrt(d_k).
    dropout : float, default=0.0
        Probability of dropping a weight.

    Returns
    -------
    output : Tensor of shape (B, T, H, d_v)
    weights : Tensor of shape (B, H, T, S)
    """
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.softmax(scores, dim=-1)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
    num_heads: int,
) -> torch.Tensor:
    """Return softmax(Q K^T / sqrt(d_k)) V, Eq. 1: faster on a CPU than PyTorch's own for few queries.

    It is computed in the type of the keys, and returned in that of the query.

    Parameters
    ----------
    query : Tensor of shape (B * H, K, d_k)
        Of K hypotheses, or of K positions.
    keys, values : Tensor of shape (B * H, d_k, N) and (B * H, N, d_v)
    mask : Tensor of shape (B * H, K, N), or None
        Added to the scores.
    scaling : float
        1 / sqrt(d_k).
    num_heads : int
        H.

    Returns
    -------
    Tensor of shape (B * K, H * d_v)
    """
    dtype, query = query.dtype, query.to(keys.dtype)
    scores = torch.bmm(query, keys).mul_(scaling) if mask is None else torch.baddbmm(mask, query, keys, alpha=scaling)
    output = torch.bmm(softmax(scores), values).to(dtype)  # (B * H, K, d_v)
    return output.unflatten(0, (-1, num_heads)).transpose(1, 2).flatten(2).flatten(0, 1)


def softmax(scores: torch.Tensor) -> torch.Tensor:
    """Return the softmax of (..., N) scores: on a CPU, that of bfloat16 takes PyTorch up to three times as long."""
    if scores.dtype is torch.bfloat16 and scores.device.type == "cpu" and scores.shape[-1] >= MIN_SCORES:
        return scores.float().softmax(-1).to(torch.bfloat16)
    return scores.softmax(-1)


def reach_of(restriction: int, is_causal: bool) -> tuple[int, int]:
    """Return how many positions before and behind its own a query sees, so that it sees `restriction` in all.

    Section 4: "a neighborhood of size r in the input sequence centered around the respective output position". An even
    r has no center: there it is one position more before than behind. The decoder must not look ahead, and the paper
    does not say what it sees; here it sees the r last positions, its own included.
    """
    return (restriction - 1, 0) if is_causal else (restriction // 2, (restriction - 1) // 2)


def band(restriction: int, is_causal: bool) -> Callable:
    """Return the neighborhood as a mask function of transformers: whether query position q sees key position k."""
    before, behind = reach_of(restriction, is_causal)
    return lambda batch, head, q, k: (q - before <= k) & (k <= q + behind)


def restricted(attention: Callable, name: str, restriction: int) -> Callable:
    """Return the restricted form of the `attention` that a back end of this name computes.

    Raises
    ------
    ValueError
        If it has none.
    """
    if name == "eager":  # its mask has the band
        return attention
    if name == "sdpa" and attention is sdpa_attention_forward:
        return banded_attention_forward
    raise ValueError(
        f"attention_restriction={restriction} does not go together with attn_implementation={name!r}: that must be "
        "'sdpa' or 'eager', as transformers has them, or attention_restriction None"
    )


def banded_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    first_position: int | torch.Tensor = 0,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, None]:
    """Restricted self-attention in time and memory of O(n r): section 4, Table 1.

    A block of neighboring queries sees little more than r keys, which are copied for it. PyTorch's own attention
    computes all blocks like sentences of a batch, so that no (T, S) matrix is ever made.

    Parameters
    ----------
    module : nn.Module
        Supplies `restriction` (r) and `is_causal`.
    query, key : Tensor of shape (B, H, T, d_k) and (B, H, S, d_k)
    value : Tensor of shape (B, H, S, d_v)
    attention_mask : Tensor of shape (B, S') and type bool, or None
        True for each real token. Where S' < S, the keys beyond S' are not real: a static cache has some.
    scaling : float, default=None
        None means 1 / sqrt(d_k).
    dropout : float, default=0.0
        Probability of dropping a weight.
    first_position : int or Tensor of shape (), default=0
        Position of the first query among the keys; that of the others follows.

    Returns
    -------
    output : Tensor of shape (B, T, H, d_v)
        Queries that are padding get some finite value.
    weights : None

    Notes
    -----
    In smaller blocks each key is copied more often, in larger ones each query has more scores that the band then
    hides. In blocks of r each key is copied twice, and each query has 2 r - 1 scores: measured, about the fastest.

    What `torch.export` makes of it takes other lengths of as many blocks only. What it makes of "eager" takes any.
    """
    length, num_keys = query.shape[2], key.shape[2]
    before, behind = (min(reach, num_keys - 1) for reach in reach_of(module.restriction, module.is_causal))
    block = min(max(before + behind + 1, MIN_BLOCK), length)
    num_blocks = -(-length // block)
    query_positions = torch.arange(num_blocks * block, device=key.device).view(num_blocks, block) + first_position
    window = torch.arange(-before, block + behind, device=key.device)
    key_positions = query_positions[:, :1] + window  # (N, W)
    legal = legal_connections(query_positions, key_positions, (before, behind), attention_mask, num_keys)
    key_positions = key_positions.clamp(0, num_keys - 1).flatten()

    def split(states: torch.Tensor, size: int) -> torch.Tensor:
        # (B, N * size, H, d) -> (B * N, H, size, d)
        return states.reshape(-1, size, *states.shape[2:]).transpose(1, 2)

    output = scaled_dot_product_attention(
        split(pad(query.transpose(1, 2), (0, 0, 0, 0, 0, num_blocks * block - length)), block),
        split(key.transpose(1, 2).index_select(1, key_positions), len(window)),
        split(value.transpose(1, 2).index_select(1, key_positions), len(window)),
        attn_mask=legal.expand(len(query), -1, -1, -1).flatten(0, 1)[:, None],
        dropout_p=dropout,
        scale=scaling,
    )
    output = output.transpose(1, 2).unflatten(0, (len(query), num_blocks)).flatten(1, 2)  # (B, N * block, H, d_v)
    return output[:, :length], None


def legal_connections(
    query_positions: torch.Tensor,
    key_positions: torch.Tensor,
    reach: tuple[int, int],
    attention_mask: torch.Tensor | None,
    num_keys: int,
) -> torch.Tensor:
    """Return which of its window's keys each query sees.

    Parameters
    ----------
    query_positions, key_positions : Tensor of shape (N, block) and (N, W)
        A window may begin before the first key and end behind the last.
    reach : tuple of int
        Positions before and behind its own that a query sees.
    attention_mask : Tensor of shape (B, S') and type bool, or None
        True for each real token.
    num_keys : int
        S.

    Returns
    -------
    Tensor of shape (B, N, block, W) and type bool, or (1, N, block, W) without `attention_mask`
        Every query sees itself, even padding: a softmax over nothing would not be a number.
    """
    before, behind = reach
    distance = key_positions[:, None] - query_positions[..., None]  # (N, block, W)
    num_real = num_keys if attention_mask is None else attention_mask.shape[1]
    is_real = (key_positions >= 0) & (key_positions < num_real)
    if attention_mask is not None:
        is_real = is_real & attention_mask[:, key_positions.clamp(0, num_real - 1)]  # (B, N, W)
    is_real = is_real.view(-1, len(key_positions), 1, key_positions.shape[1])
    return (-before <= distance) & (distance <= behind) & is_real | (distance == 0)


__all__ = ["attend", "band", "eager_attention_forward", "restricted"]
