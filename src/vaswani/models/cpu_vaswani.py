"""Faster on a CPU: dropout from random bits, and weights laid out once for many matrix products."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import linear
from transformers.utils import is_torchdynamo_compiling


def dropout(hidden_states: torch.Tensor, p: float, training: bool) -> torch.Tensor:
    """Zero elements with probability `p` and scale the others by 1 / (1 - p): section 5.4.

    Notes
    -----
    On CPU, PyTorch draws one random number per element on a single core: 10% of a training step. 16 random bits per
    element do: `p` is rounded to a multiple of 2^-16, and the scale is that of the rounded `p`.
    """
    if not training or p == 0 or hidden_states.device.type != "cpu" or is_torchdynamo_compiling():
        return nn.functional.dropout(hidden_states, p, training)
    dropped = min(round(p * 2**16), 2**16 - 1)
    words = torch.empty((hidden_states.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: hidden_states.numel()].view(hidden_states.shape)
    kept = bits >= dropped - 2**15
    return hidden_states * kept.to(hidden_states.dtype).mul_(2**16 / (2**16 - dropped))


def projection(weight: torch.Tensor, bias: torch.Tensor | None, rows: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function x -> x W^T + b.

    oneDNN, which multiplies bfloat16 on CPUs, rearranges the weight in every call. Decoding calls it at every step, so
    the weight is rearranged once, for calls with about `rows` rows.
    """
    if not can_be_packed(weight, rows):
        return lambda states: linear(states, weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    return lambda states: torch.ops.mkldnn._linear_pointwise(states, packed, bias, "none", [], "")


def can_be_packed(weight: torch.Tensor, rows: int) -> bool:
    """Tell whether oneDNN can use a weight that was rearranged once, and whether that pays: from 16 rows on."""
    if rows < 16 or weight.dtype is not torch.bfloat16 or weight.device.type != "cpu":
        return False
    names = ("_is_mkldnn_bf16_supported", "_reorder_linear_weight", "_linear_pointwise")
    return all(hasattr(torch.ops.mkldnn, name) for name in names) and torch.ops.mkldnn._is_mkldnn_bf16_supported()


__all__ = ["can_be_packed", "dropout", "projection"]
