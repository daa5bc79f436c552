"""What a GPU computes between the products: attention, residual and norm, ReLU and softmax, and their gradients.

The rows of a batch stand one after another, so that a query sees keys that do: an interval of them. Triton's kernels
compute a few blocks where FlexAttention, which may hold any mask, needs three times as long.
"""

from typing import NamedTuple

import torch


# What measured best with heads of 64 columns: rows of queries and of keys at a time, and warps.
QUERIES, KEYS, WARPS = 64, 32, 4
# The rows that a program of layer normalization holds at a time, and for its gradients the number of programs: four
# for each multiprocessor of an H100 or H200.
NORM_ROWS, NORM_PROGRAMS = 4, 528
# A block of ReLU's gradients, and the logits that a program of the softmax holds at a time.
RELU_ROWS, RELU_COLUMNS = 64, 64
LOGITS = 4096


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
        here = torch.arange(len(queries), device=queries.device, dtype=torch.int32)
        return Seen(first_key, here + 1, here, end_key)
    return Seen(first_key, end_key, *_ends(queries, keys))


def _ends(sentences: torch.Tensor, wanted: torch.Tensor) -> list[torch.Tensor]:
    """Return where the wanted sentences begin, and end, among others."""
    return [torch.searchsorted(sentences, wanted, out_int32=True, right=right) for right in (False, True)]


class Projected(NamedTuple):
    """Queries (M, H * d_k), keys (N, H * d_k) and values (N, H * d_v), or their gradients.

    They may be columns of wider matrices. M and N are multiples of `packing.BLOCK`.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor

    @property
    def strides(self) -> list[int]:
        """From row to row."""
        return [part.stride(0) for part in self]


def attend(projected: Projected, seen: Seen, heads: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute multi-head attention (Eq. 1 of section 3.2.1).

    Parameters
    ----------
    projected : Projected
    seen : Seen
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

    rows, key_rows = len(projected.query), len(projected.key)
    output = projected.value.new_empty(rows, projected.value.shape[1])
    logsumexp = output.new_empty(heads, rows, dtype=torch.float32)
    kernels.attend[(rows // QUERIES, heads)](
        *projected, output, logsumexp, *seen[:2], rows, key_rows, *projected.strides, **_sizes(projected, heads, scale)
    )
    return output, logsumexp


def attend_backward(
    projected: Projected,
    seen: Seen,
    heads: int,
    scale: float,
    output: torch.Tensor,
    logsumexp: torch.Tensor,
    d_output: torch.Tensor,
    into: Projected,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Write the gradients of what was projected, and return those of the biases of queries and of values.

    The bias of the keys has none: it shifts all scores of a query alike.
    """
    from training.gpu import kernels

    rows, key_rows, sizes = len(projected.query), len(projected.key), _sizes(projected, heads, scale)
    product = torch.empty_like(logsumexp)
    d_query_bias, d_value_bias = (
        output.new_empty(blocks, part.shape[1], dtype=torch.float32)
        for blocks, part in ((rows // QUERIES, projected.query), (key_rows // KEYS, projected.value))
    )
    kernels.attend_backward_queries[(rows // QUERIES, heads)](
        *projected, output, d_output, logsumexp, product, into.query, d_query_bias, *seen[:2],
        rows, key_rows, *projected.strides, into.strides[0], **sizes,
    )  # fmt: skip
    kernels.attend_backward_keys[(key_rows // KEYS, heads)](
        *projected, d_output, logsumexp, product, into.key, into.value, d_value_bias, *seen,
        rows, key_rows, *projected.strides, *into.strides[1:], **sizes,
    )  # fmt: skip
    return sum_of_rows(d_query_bias), sum_of_rows(d_value_bias)


def _sizes(projected: Projected, heads: int, scale: float) -> dict[str, float]:
    """Return what the kernels of attention are compiled for."""
    width, value_width = (part.shape[1] // heads for part in projected[1:])
    return {
        "SCALE": scale,
        "WIDTH": width,
        "VALUE_WIDTH": value_width,
        "QUERIES": QUERIES,
        "KEYS": KEYS,
        "num_warps": WARPS,
    }


class Normed(NamedTuple):
    """What layer normalization gives, and what its gradients need.

    Attributes
    ----------
    output, total : Tensor of shape (N, D)
        The result, and what was normalized, in the type of the products; between, all is float32.
    mean, rstd : Tensor of shape (N,)
        Of what was normalized, and the reciprocal of its deviation.
    """

    output: torch.Tensor
    total: torch.Tensor
    mean: torch.Tensor
    rstd: torch.Tensor


def add_and_norm(
    states: torch.Tensor,
    output: torch.Tensor,
    gain: torch.Tensor,
    bias: torch.Tensor,
    seed: torch.Tensor,
    eps: float,
    p: float,
) -> Normed:
    """Compute LayerNorm(x + Dropout(Sublayer(x))), sections 3.1 and 5.4.

    Parameters
    ----------
    states, output : Tensor of shape (N, D)
        x and what the sublayer makes of it, of the same type.
    gain, bias : Tensor of shape (D,)
        Of layer normalization.
    seed : Tensor
        One integer of 32 bits, from which it follows what is dropped.
    eps, p : float
        Of layer normalization and of dropout.
    """
    from training.gpu import kernels

    rows, width = output.shape
    normed, total = torch.empty_like(output), torch.empty_like(output)
    mean, rstd = output.new_empty(2, rows, dtype=torch.float32)
    kernels.add_and_norm[(-(-rows // NORM_ROWS),)](
        states, output, gain, bias, seed, normed, total, mean, rstd, rows,
        WIDTH=width, COLUMNS=power_of_two(width), ROWS=NORM_ROWS, EPS=eps, P=p, num_warps=WARPS,
    )  # fmt: skip
    return Normed(normed, total, mean, rstd)


def add_and_norm_backward(
    d_normed: torch.Tensor, normed: Normed, gain: torch.Tensor, seed: torch.Tensor, p: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of x and of the sublayer's output, (N, D), and those of three vectors, (3, D).

    These are gain and bias, and the bias that is the last step of the sublayer.
    """
    from training.gpu import kernels

    rows, width = normed.total.shape
    d_states, d_output = torch.empty_like(normed.total), torch.empty_like(normed.total)
    d_vectors = gain.new_empty(NORM_PROGRAMS, 3, width, dtype=torch.float32)
    kernels.add_and_norm_backward[(NORM_PROGRAMS,)](
        d_normed, *normed[1:], gain, seed, d_states, d_output, d_vectors, rows,
        WIDTH=width, COLUMNS=power_of_two(width), ROWS=NORM_ROWS, P=p, num_warps=WARPS,
    )  # fmt: skip
    return d_states, d_output, sum_of_rows(d_vectors)


def sum_of_rows(parts: torch.Tensor) -> torch.Tensor:
    """Return the sum over the first dimension: as a product, in half the time that a GPU takes for few rows."""
    return torch.mv(parts.flatten(1).T, parts.new_ones(len(parts))).view(parts.shape[1:])


def weight_gradient(d_output: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """Return the gradient (F, D) of a weight by those of (N, F) outputs of (N, D) states, in float32 or wider."""
    if d_output.is_cuda and d_output.dtype.itemsize == 2:
        return torch.mm(d_output.T, states, out_dtype=torch.float32)
    return (d_output.T @ states).to(torch.promote_types(states.dtype, torch.float32))


def power_of_two(number: int) -> int:
    """Return the lowest power of two that is not lower."""
    return 1 << (number - 1).bit_length()


def relu_backward_(d_active: torch.Tensor, active: torch.Tensor) -> torch.Tensor:
    """Let the gradient (N, F) through where the output of ReLU is above zero; return that of the bias before it."""
    from training.gpu import kernels

    rows, width = active.shape
    blocks = -(-rows // RELU_ROWS)
    d_bias = active.new_empty(blocks, width, dtype=torch.float32)
    kernels.relu_backward[(blocks, -(-width // RELU_COLUMNS))](
        d_active, active, d_bias, rows, width, ROWS=RELU_ROWS, COLUMNS=RELU_COLUMNS, num_warps=WARPS
    )
    return sum_of_rows(d_bias)


def softmax_and_logsumexp_(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn (N, V) logits into probabilities, and return these and the (N,) logsumexps in float32."""
    from training.gpu import kernels

    logsumexp = logits.new_empty(len(logits), dtype=torch.float32)
    kernels.softmax[(len(logits),)](logits, logsumexp, WIDTH=logits.shape[1], COLUMNS=LOGITS, num_warps=2 * WARPS)
    return logits, logsumexp
