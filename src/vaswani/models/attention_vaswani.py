"""Attention as a function of queries, keys and values: section 3.2.1.

Axis letters: see `modeling_vaswani.py`.
"""

import torch
from torch import nn
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs


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


__all__ = ["eager_attention_forward"]
