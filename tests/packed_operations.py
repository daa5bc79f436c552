"""What stands in for the kernels of `training.gpu` where there is no GPU: PyTorch, with gradients by autograd.

The kernels themselves are tested on a GPU, or in Triton's interpreter: `make test-kernels`.
"""

import os
from importlib.util import find_spec

import pytest
import torch
from torch.nn.functional import layer_norm, scaled_dot_product_attention

from training.gpu import operations
from training.gpu.operations import Normed, Projected


IN_INTERPRETER = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
DEVICE = "cpu" if IN_INTERPRETER else "cuda"
needs_kernels = pytest.mark.skipif(
    not (IN_INTERPRETER or torch.cuda.is_available()), reason="needs a CUDA device, or make test-kernels"
)
NAMES = (
    "attend", "attend_backward", "add_and_norm", "add_and_norm_backward", "relu_backward_", "softmax_and_logsumexp_",
)  # fmt: skip


def mask_of(first: torch.Tensor, end: torch.Tensor, keys: int) -> torch.Tensor:
    """Return the (M, N) mask of which keys each query sees."""
    places = torch.arange(keys, device=first.device)
    return (places >= first[:, None]) & (places < end[:, None])


def attend(projected, seen, heads, scale):
    """Return attention within the mask."""
    query, key, value = (part.unflatten(-1, (heads, -1)).transpose(0, 1)[None] for part in projected)
    mask = mask_of(*seen[:2], key.shape[-2])
    output = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    return output[0].transpose(0, 1).flatten(1), output.new_zeros(())


def attend_backward(projected, seen, heads, scale, output, logsumexp, d_output, into):
    """Write the gradients, and return their sums for the biases of queries and of values."""
    with torch.enable_grad():
        given = Projected(*(part.detach().requires_grad_() for part in projected))
        found = torch.autograd.grad(attend(given, seen, heads, scale)[0], given, d_output)
    for gradient, place in zip(found, into, strict=True):
        place.copy_(gradient)
    return found[0].sum(0), found[2].sum(0)


def dropped(states: torch.Tensor, seed: torch.Tensor, p: float) -> torch.Tensor:
    """Return states with dropout, of PyTorch's random numbers."""
    kept = torch.rand(states.shape, generator=torch.Generator().manual_seed(int(seed))) >= p
    return states * kept.to(states.device) / (1 - p)


def add_and_norm(states, output, gain, bias, seed, eps, p):
    """Return LayerNorm(x + Dropout(y)); `mean` holds what its gradients need, `rstd` eps."""
    total = states + dropped(output, seed, p)
    normed = layer_norm(total, gain.shape, gain.to(total.dtype), bias.to(total.dtype), eps)
    return Normed(normed, total, torch.zeros(()), torch.tensor(eps))


def add_and_norm_backward(d_normed, normed, gain, seed, p):
    """Return the gradients."""
    with torch.enable_grad():
        total = normed.total.detach().requires_grad_()
        gain, bias = gain.detach().to(total.dtype).requires_grad_(), torch.zeros_like(gain).to(total.dtype)
        output = layer_norm(total, gain.shape, gain, bias, normed.rstd.item())
        d_total, d_gain = torch.autograd.grad(output, (total, gain), d_normed)
    d_output = dropped(d_total, seed, p)
    return d_total, d_output, torch.stack([d_gain, d_normed.sum(0), d_output.sum(0)])


def relu_backward_(d_active, active):
    """Return the gradient of the bias."""
    return d_active.mul_(active > 0).sum(0)


def softmax_and_logsumexp_(logits):
    """Return both, and spoil the logits."""
    found = logits.softmax(-1), logits.logsumexp(-1)
    logits.fill_(torch.nan)
    return found


def stand_in(monkeypatch) -> None:
    """Let these be what the objective computes with."""
    for name in NAMES:
        monkeypatch.setattr(operations, name, globals()[name])
