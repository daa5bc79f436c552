"""Dropout that is faster on a CPU: from random bits."""

import torch
from torch import nn
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


__all__ = ["dropout"]
