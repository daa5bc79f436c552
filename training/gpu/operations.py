"""What a GPU computes between the products of a layer, as operations of PyTorch: attention, residual and norm.

The rows of a batch stand one after another, so that a query sees keys that do: an interval of them. Triton's kernels
compute a few blocks where FlexAttention, which may hold any mask, needs three times as long.
"""

from typing import NamedTuple

import torch
from torch.library import triton_op, wrap_triton


# What measured best with heads of 64 columns: rows of queries and of keys at a time, and warps.
QUERIES, KEYS, WARPS = 64, 32, 4
# The rows that a program of layer normalization holds at a time, and, for its gradients, programs at a time.
NORM_ROWS, NORM_PROGRAMS = 4, 528


class Seen(NamedTuple):
    """Which keys a query sees, [first_key, end_key), and the queries that see a key: int32, by rows, ascending."""

    first_key: torch.Tensor
    end_key: torch.Tensor
    first_query: torch.Tensor
    end_query: torch.Tensor


def same_sentence(queries: torch.Tensor, keys: torch.Tensor, is_causal: bool = False) -> Seen:
    """Return which keys each query sees: those of its sentence, and of these, if `is_causal`, none behind it.

    Parameters
    ----------
    queries, keys : Tensor of shape (M,) and (N,)
        The sentence of each; they ascend, and every one of them is on both sides.
    is_causal : bool, default=False
        Queries and keys are then the same.
    """
    first_key, end_key = _ends(keys, queries)
    if is_causal:
        here = torch.arange(queries.shape[0], device=queries.device, dtype=torch.int32)
        return Seen(first_key, here + 1, here, end_key)
    return Seen(first_key, end_key, *_ends(queries, keys))


def _ends(sentences: torch.Tensor, wanted: torch.Tensor) -> list[torch.Tensor]:
    """Return where the wanted sentences begin, and end, among others."""
    return [torch.searchsorted(sentences, wanted, out_int32=True, right=right) for right in (False, True)]


@triton_op("vaswani::attend", mutates_args=())
def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    first_key: torch.Tensor,
    end_key: torch.Tensor,
    first_query: torch.Tensor,
    end_query: torch.Tensor,
    heads: int,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute multi-head attention (Eq. 1 of section 3.2.1) of packed rows.

    Parameters
    ----------
    query : Tensor of shape (M, heads * d_k)
    key, value : Tensor of shape (N, heads * d_k) and (N, heads * d_v)
        Rows need not stand side by side, but columns must. M and N are multiples of `BLOCK`.
    first_key, end_key, first_query, end_query : Tensor
        As `Seen` has them.
    heads : int
    scale : float
        d_k^-0.5.

    Returns
    -------
    output : Tensor of shape (M, heads * d_v)
    logsumexp : Tensor of shape (heads, M)
        Of the scores, as binary logarithm; for the gradients.
    """
    from training.gpu import kernels

    rows = query.shape[0]  # of any size, where `len` would be of this one
    width, value_width = query.shape[1] // heads, value.shape[1] // heads
    output = value.new_empty((rows, heads * value_width))
    logsumexp = query.new_empty((heads, rows), dtype=torch.float32)
    wrap_triton(kernels.attend)[(rows // QUERIES, heads)](
        query, key, value, output, logsumexp, first_key, end_key, rows, key.shape[0],
        query.stride(0), key.stride(0), value.stride(0),
        SCALE=scale, WIDTH=width, VALUE_WIDTH=value_width, QUERIES=QUERIES, KEYS=KEYS, num_warps=WARPS,
    )  # fmt: skip
    return output, logsumexp


@triton_op("vaswani::attend_backward", mutates_args=())
def attend_backward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    first_key: torch.Tensor,
    end_key: torch.Tensor,
    first_query: torch.Tensor,
    end_query: torch.Tensor,
    output: torch.Tensor,
    logsumexp: torch.Tensor,
    d_output: torch.Tensor,
    heads: int,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of query, key and value, from that of the output, which must be contiguous."""
    from training.gpu import kernels

    rows, key_rows = query.shape[0], key.shape[0]
    width, value_width = query.shape[1] // heads, value.shape[1] // heads
    d_query, d_key, d_value = (part.new_empty(part.shape) for part in (query, key, value))
    product = torch.empty_like(logsumexp)
    sizes = {"SCALE": scale, "WIDTH": width, "VALUE_WIDTH": value_width, "QUERIES": QUERIES, "KEYS": KEYS}
    layout = rows, key_rows, query.stride(0), key.stride(0), value.stride(0)
    wrap_triton(kernels.attend_backward_queries)[(rows // QUERIES, heads)](
        query, key, value, output, d_output, logsumexp, product, d_query, first_key, end_key, *layout,
        **sizes, num_warps=WARPS,
    )  # fmt: skip
    wrap_triton(kernels.attend_backward_keys)[(key_rows // KEYS, heads)](
        query, key, value, d_output, logsumexp, product, d_key, d_value, first_key, end_key, first_query, end_query,
        *layout, **sizes, num_warps=WARPS,
    )  # fmt: skip
    return d_query, d_key, d_value


def _keep_for_attend(ctx, inputs, output) -> None:
    *tensors, ctx.heads, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])


def _attend_backward(ctx, d_output, _):
    gradients = attend_backward(*ctx.saved_tensors, d_output.contiguous(), ctx.heads, ctx.scale)
    return *gradients, None, None, None, None, None, None


attend.register_autograd(_attend_backward, setup_context=_keep_for_attend)


@triton_op("vaswani::add_and_norm", mutates_args=())
def add_and_norm(
    states: torch.Tensor,
    output: torch.Tensor,
    gain: torch.Tensor,
    bias: torch.Tensor,
    seed: torch.Tensor,
    eps: float,
    p: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute LayerNorm(x + Dropout(Sublayer(x))), sections 3.1 and 5.4.

    Parameters
    ----------
    states, output : Tensor of shape (N, D)
        x and what the sublayer makes of it, contiguous.
    gain, bias : Tensor of shape (D,)
        Of layer normalization.
    seed : Tensor
        One integer of 32 bits, from which it follows what is dropped.
    eps, p : float
        Of layer normalization and of dropout.

    Returns
    -------
    normed : Tensor of shape (N, D)
        In the type of the sublayer's output; between, all is float32.
    total : Tensor of shape (N, D)
        What was normalized, in the same type, and the mean and the reciprocal of the deviation of its rows, (N,)
        each; for the gradients.
    """
    from training.gpu import kernels

    rows, width = output.shape
    normed, total = torch.empty_like(output), torch.empty_like(output)
    mean, rstd = (output.new_empty(rows, dtype=torch.float32) for _ in range(2))
    wrap_triton(kernels.add_and_norm)[((rows + NORM_ROWS - 1) // NORM_ROWS,)](
        states, output, gain, bias, seed, normed, total, mean, rstd, rows,
        WIDTH=width, COLUMNS=power_of_two(width), ROWS=NORM_ROWS, EPS=eps, P=p, num_warps=WARPS,
    )  # fmt: skip
    return normed, total, mean, rstd


@triton_op("vaswani::add_and_norm_backward", mutates_args=())
def add_and_norm_backward(
    d_normed: torch.Tensor,
    total: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    gain: torch.Tensor,
    seed: torch.Tensor,
    p: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of states and output, and of gain and bias (programs, 2, D), whose sums are these."""
    from training.gpu import kernels

    rows, width = total.shape
    d_states, d_output = torch.empty_like(total), torch.empty_like(total)
    d_affine = gain.new_empty((NORM_PROGRAMS, 2, width), dtype=torch.float32)
    wrap_triton(kernels.add_and_norm_backward)[(NORM_PROGRAMS,)](
        d_normed, total, mean, rstd, gain, seed, d_states, d_output, d_affine, rows,
        WIDTH=width, COLUMNS=power_of_two(width), ROWS=NORM_ROWS, P=p, num_warps=WARPS,
    )  # fmt: skip
    return d_states, d_output, d_affine


def power_of_two(number: int) -> int:
    """Return the lowest power of two that is not lower."""
    return 1 << (number - 1).bit_length()


def _keep_for_norm(ctx, inputs, output) -> None:
    _, _, gain, _, seed, _, ctx.p = inputs
    _, *kept = output
    ctx.save_for_backward(*kept, gain, seed)
    ctx.mark_non_differentiable(*kept)


def _add_and_norm_backward(ctx, d_normed, *_):
    d_states, d_output, d_affine = add_and_norm_backward(d_normed.contiguous(), *ctx.saved_tensors, ctx.p)
    d_gain, d_bias = d_affine.sum(0)
    return d_states, d_output, d_gain, d_bias, None, None, None


add_and_norm.register_autograd(_add_and_norm_backward, setup_context=_keep_for_norm)
