"""`kernels.c`, compiled for this machine when its first run begins, as functions of tensors.

PyTorch computes what lies between two matrix products operation by operation, each over all of memory, which takes a
CPU two fifths of an update. Here each such place is one pass. Matrices have a row for each position of a batch, one
sentence behind the other without padding between them, and then some rows up to a number that oneDNN knows: see
`padded`. All of them are in the type in which the run multiplies, bfloat16 or float32, except the residuals, which are
in float32 beside a copy "rounded" to that type. In float32 the copy is the same memory.

Axis letters: see `modeling_vaswani.py`. Here also N rows, and W columns of a matrix.
"""

import ctypes
import functools
import hashlib
import math
import os
import shlex
import subprocess
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, c_float, c_int, c_int64, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from vaswani.files import whole_file


SOURCE = Path(__file__).with_name("kernels.c")
CACHE = Path(__file__).parents[2] / ".cache" / "kernels"  # what was compiled; `make clean` removes it
# Without traps and errno GCC vectorizes; sums stay in the order in which they are written, and NaN stays NaN.
FLAGS = ["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC"]
LANES = 16  # every width is a multiple of it, except those of single heads
# Numbers of rows are rounded up to a multiple of it, with 1.3% more rows on Multi30k: oneDNN makes a kernel for each,
# which takes as long as half a product, and so it finds it again.
ROWS = 64


class CannotCompile(ValueError):
    """There is no C compiler here, or it cannot compile the kernels."""


class Dropout(ctypes.Structure):
    """Dropout that is the same whenever it is computed: of probability `p`, of a seed drawn from torch's generator."""

    _fields_ = (("threshold", c_uint32), ("scale", c_float), ("seed", c_uint64))

    @classmethod
    def of(cls, p: float) -> "Dropout":
        """Draw a seed. `p` is rounded to a multiple of 2^-32, and the scale is that of the rounded `p`."""
        threshold = min(round(p * 2**32), 2**32 - 1)
        seed = torch.empty((), dtype=torch.int64).random_(-(2**63), None).item() if threshold else 0
        return cls(threshold, 2**32 / (2**32 - threshold), int(seed) % 2**64)


class Sentences(NamedTuple):
    """Where the B sentences of one side of a batch lie in a matrix that has a row for each position.

    Attributes
    ----------
    starts : Tensor of shape (B + 1,), int64
        The row where each sentence begins, and behind the last one where it ends.
    rows : int
        Of all sentences.
    longest : int
        Rows of the longest sentence.
    """

    starts: torch.Tensor
    rows: int
    longest: int

    @classmethod
    def of(cls, lengths: torch.Tensor) -> "Sentences":
        """Lay out sentences of (B,) lengths."""
        starts = nn.functional.pad(lengths.cumsum(0), (1, 0))
        return cls(starts, int(starts[-1]), int(lengths.max()))


class Heads(NamedTuple):
    """The queries and keys of an attention sublayer: those of a batch's sentences, for each of H heads."""

    queries: Sentences
    keys: Sentences
    count: int
    key_width: int
    value_width: int


class Shape(ctypes.Structure):
    """`shape` of kernels.c."""

    _fields_ = (
        *((name, c_int64) for name in ("batch", "heads", "key_width", "value_width", "query_stride", "key_stride")),
        *((name, c_int64) for name in ("longest_query", "longest_key")),
        *((name, c_void_p) for name in ("query_starts", "key_starts")),
    )

    @classmethod
    def of(cls, heads: Heads, projected: "Projected") -> "Shape":
        """Describe `heads` as long as they live, whose states lie as those `projected`."""
        return cls(
            len(heads.queries.starts) - 1, heads.count, heads.key_width, heads.value_width,
            projected.query.stride(0), projected.key.stride(0), heads.queries.longest, heads.keys.longest,
            at(heads.queries.starts), at(heads.keys.starts),
        )  # fmt: skip


class Projected(NamedTuple):
    """Queries (N, H d_k), keys (M, H d_k) and values (M, H d_v), which may be columns of one matrix."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


class Biases(NamedTuple):
    """Those of queries (H d_k,), keys (H d_k,) and values (H d_v,), in float32, if they have one."""

    query: torch.Tensor | None = None
    key: torch.Tensor | None = None
    value: torch.Tensor | None = None


class Pointers(ctypes.Structure):
    """`projected` of kernels.c."""

    _fields_ = tuple((name, c_void_p) for name in ("query", "key", "value", "query_bias", "key_bias", "value_bias"))


class Normalized(NamedTuple):
    """LayerNorm's output, in float32 and rounded, and what its gradients need."""

    output: torch.Tensor  # (N, W)
    rounded: torch.Tensor  # (N, W)
    normed: torch.Tensor  # (N, W): the output before gain and bias
    rstd: torch.Tensor  # (N,): 1 / the standard deviation


TENSOR, SIZE = c_void_p, c_int64
SIGNATURES = {
    "round_both": [TENSOR, TENSOR, TENSOR, SIZE, SIZE, SIZE],
    "transpose_rounded": [TENSOR, TENSOR, TENSOR, SIZE, SIZE],
    "embed": [*[TENSOR] * 4, c_int64, c_float, Dropout, TENSOR, TENSOR, SIZE, SIZE, SIZE],
    "embed_backward": [TENSOR, TENSOR, TENSOR, c_int64, c_float, Dropout, TENSOR, TENSOR, SIZE, SIZE],
    "add_norm": [TENSOR, TENSOR, TENSOR, Dropout, TENSOR, TENSOR, c_float, *[TENSOR] * 4, SIZE, SIZE, SIZE],
    "add_norm_backward": [*[TENSOR] * 4, Dropout, *[TENSOR] * 4, SIZE, SIZE, SIZE],
    "relu": [TENSOR, Dropout, SIZE, SIZE],
    "relu_backward": [TENSOR, TENSOR, c_float, TENSOR, SIZE, SIZE],
    "column_sums": [TENSOR, TENSOR, SIZE, SIZE],
    "attention": [POINTER(Pointers), c_int, c_float, Dropout, TENSOR, TENSOR, POINTER(Shape), SIZE],
    "attention_backward": [POINTER(Pointers), TENSOR, TENSOR, c_float, Dropout, *[TENSOR] * 3, POINTER(Shape)],
    "softmax_minus_target": [TENSOR, TENSOR, c_float, TENSOR, TENSOR, SIZE, SIZE],
    "softmaxes_minus_target": [TENSOR, TENSOR, c_float, c_float, *[TENSOR] * 3, SIZE, SIZE],
}


@functools.cache
def library(dtype: torch.dtype) -> ctypes.CDLL:
    """Load the kernels for matrices of that type; the first time they are compiled, which takes some seconds.

    Raises
    ------
    CannotCompile
        If that fails.
    """
    compiler = shlex.split(os.environ.get("CC", "cc"))
    flags = [*FLAGS, "-DFLOAT32"] if dtype == torch.float32 else FLAGS
    with cache() as folder:
        try:
            loaded = ctypes.CDLL(str(compiled([*compiler, *flags, str(SOURCE)], folder)))
        except subprocess.CalledProcessError as error:
            lines = error.stderr.splitlines() or [f"it ends with status {error.returncode}"]
            said = next((line for line in lines if "error" in line), lines[0])
            raise CannotCompile(f"they cannot be compiled by {shlex.join(compiler)}: {said}") from error
        except OSError as error:
            raise CannotCompile(f"they cannot be compiled by {shlex.join(compiler)}: {error}") from error
    for name, arguments in SIGNATURES.items():
        getattr(loaded, name).argtypes = arguments
        getattr(loaded, name).restype = None
    loaded.omp_set_num_threads(torch.get_num_threads())  # where torch has another OpenMP than the compiler
    return loaded


@contextmanager
def cache() -> Generator[Path, None, None]:
    """Yield the folder of what was compiled, or a temporary one where that cannot be written."""
    try:
        CACHE.mkdir(parents=True, exist_ok=True)
        is_ours = os.access(CACHE, os.W_OK)
    except OSError:
        is_ours = False
    if is_ours:
        yield CACHE
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)


def compiled(command: list[str], folder: Path) -> Path:
    """Return the library that a command compiles, from `folder` if it is there already.

    Its name stands for all that it depends on: the preprocessor tells the compiler's version and the instructions of
    this CPU, beside the source.
    """
    told = subprocess.run([*command, "-E", "-dD"], check=True, capture_output=True, text=True).stdout
    path = folder / f"{hashlib.sha256(' '.join([*command, told]).encode()).hexdigest()}.so"
    if not path.exists():
        with whole_file(path) as unfinished:
            line = [*command, "-o", str(unfinished), "-lm"]
            subprocess.run(line, check=True, capture_output=True, text=True)
    return path


def at(tensor: torch.Tensor | None) -> int | None:
    """Return where a tensor's elements are."""
    return None if tensor is None else tensor.data_ptr()


def padded(rows: int) -> int:
    """Return how many rows a matrix with `rows` real ones has, at least `ROWS`."""
    return max(1, math.ceil(rows / ROWS)) * ROWS


def empty(rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Make a matrix, without values."""
    return torch.empty(rows, width, dtype=dtype)


def empty_states(rows: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Make a matrix in float32 and its rounded copy, without values."""
    states = empty(rows, width, torch.float32)
    return states, states.detach() if dtype == torch.float32 else empty(rows, width, dtype)


def round_both(matrices: Sequence[torch.Tensor], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return float32 matrices (n, W), whose n add up to N, one below the other and rounded: as (N, W) and as (W, N).

    oneDNN multiplies bfloat16 by a transposed view a sixth more slowly; to write the transpose as well costs far less.
    """
    if dtype == torch.float32:
        whole = torch.cat(list(matrices)) if len(matrices) > 1 else matrices[0]
        return whole, whole.T
    rows, width = sum(map(len, matrices)), matrices[0].shape[1]
    rounded, transposed = empty(rows, width, dtype), empty(width, rows, dtype)
    first = 0
    for matrix in matrices:
        places = at(matrix), at(rounded[first:]), at(transposed[:, first:])
        library(dtype).round_both(*places, len(matrix), width, rows)
        first += len(matrix)
    return rounded, transposed


def transpose(matrix: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return the (W, N) transpose of a bfloat16 matrix (N, W), in bfloat16 or float32."""
    transposed = empty(matrix.shape[1], len(matrix), dtype)
    places = (at(transposed), None) if dtype == torch.bfloat16 else (None, at(transposed))
    library(matrix.dtype).transpose_rounded(at(matrix), *places, *matrix.shape)
    return transposed


def weight_gradient(states: torch.Tensor, d_output: torch.Tensor) -> torch.Tensor:
    """Return the gradient, in float32, of the weight (U, W) that made an (N, U) output of (N, W) states."""
    if states.dtype == torch.float32:
        return d_output.T @ states
    # Of two products, the one whose transpose is smaller.
    if d_output.shape[1] <= states.shape[1]:
        return (transpose(d_output) @ states).float()
    return transpose(transpose(states) @ d_output, torch.float32)


def embed(
    ids: torch.Tensor,
    places: torch.Tensor,
    table: torch.Tensor,
    positions: torch.Tensor,
    pad: int,
    scale: float,
    dropout: Dropout,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scaled embeddings and positions, with dropout: sections 3.4, 3.5 and 5.4.

    Parameters
    ----------
    ids, places : Tensor of shape (rows,)
        Ids, and their places in their sentences, from 0 on.
    table : Tensor of shape (V, W), float32
    positions : Tensor of shape (T, W), float32
    pad : int
        The id whose embedding counts as zero, or -1.
    scale : float
    dropout : Dropout
    dtype : torch.dtype

    Returns
    -------
    Tensors of shape (N, W)
        In float32, and rounded to `dtype`.
    """
    rows, width = len(ids), table.shape[1]
    output, rounded = empty_states(padded(rows), width, dtype)
    library(dtype).embed(
        at(ids), at(places), at(table), at(positions), pad, scale, dropout, at(output), at(rounded), rows, len(output),
        width,
    )  # fmt: skip
    return output, rounded


def embed_backward(
    d_output: torch.Tensor,
    d_rounded: torch.Tensor,
    ids: torch.Tensor,
    pad: int,
    scale: float,
    dropout: Dropout,
    d_table: torch.Tensor,
    d_sums: torch.Tensor | None,
) -> None:
    """Add the gradient of `embed` to that of its table.

    If they are given, the (rows, W) gradients of the sums of embeddings and positions are written to `d_sums`.
    """
    d_output, d_rounded = d_output.contiguous(), d_rounded.contiguous()  # copies, which live until this returns
    library(d_rounded.dtype).embed_backward(
        at(d_output), at(d_rounded), at(ids), pad, scale, dropout, at(d_sums), at(d_table), len(ids),
        d_table.shape[1],
    )  # fmt: skip


def add_norm(
    states: torch.Tensor,
    product: torch.Tensor,
    last_bias: torch.Tensor | None,
    dropout: Dropout,
    gain: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
    rows: int,
) -> Normalized:
    """Return LayerNorm(x + Dropout(Sublayer(x))), sections 3.1 and 5.4, of (N, W) `states`.

    The sublayer's output is its last (N, W) `product` and, if it has one, the bias (W,) of that.
    """
    size, width = product.shape
    found = Normalized(
        *empty_states(size, width, product.dtype),
        empty(size, width, product.dtype),
        torch.empty(rows, dtype=torch.float32),
    )
    library(product.dtype).add_norm(
        at(states), at(product), at(last_bias), dropout, at(gain), at(bias), eps, *map(at, found), rows, size, width
    )
    return found


def add_norm_backward(
    d_output: torch.Tensor | None,
    d_rounded: torch.Tensor | None,
    normed: torch.Tensor,
    rstd: torch.Tensor,
    dropout: Dropout,
    gain: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of `add_norm`.

    Returns
    -------
    d_states : Tensor of shape (N, W), float32
    d_sublayer : Tensor of shape (N, W), of the type of `normed`
    d_gain, d_bias : Tensor of shape (W,)
    d_last_bias : Tensor of shape (W,)
        The sum of the rows of `d_sublayer`.
    """
    size, width = normed.shape
    d_states, d_sublayer = empty(size, width, torch.float32), torch.empty_like(normed)
    sums = empty(3, width, torch.float32)
    d_output, d_rounded = (None if each is None else each.contiguous() for each in (d_output, d_rounded))
    library(normed.dtype).add_norm_backward(
        at(d_output), at(d_rounded), at(normed), at(rstd), dropout, at(gain),
        at(d_states), at(d_sublayer), at(sums), len(rstd), size, width,
    )  # fmt: skip
    return d_states, d_sublayer, *sums


def relu_(states: torch.Tensor, dropout: Dropout) -> torch.Tensor:
    """Overwrite (N, W) `states` with Dropout(max(0, x)): Eq. 2 of section 3.3."""
    library(states.dtype).relu(at(states), dropout, *states.shape)
    return states


def relu_backward_(d_output: torch.Tensor, output: torch.Tensor, dropout: Dropout) -> torch.Tensor:
    """Overwrite the gradient of `relu_`'s (N, W) output with that of its states; return the sum of its rows."""
    sums = torch.empty(output.shape[1], dtype=torch.float32)
    library(output.dtype).relu_backward(at(d_output), at(output), dropout.scale, at(sums), *output.shape)
    return sums


def sum_of_rows(matrix: torch.Tensor) -> torch.Tensor:
    """Return the (W,) sum of the rows of an (N, W) matrix, in float32."""
    sums = torch.empty(matrix.shape[1], dtype=torch.float32)
    library(matrix.dtype).column_sums(at(matrix), at(sums), *matrix.shape)
    return sums


def attention(
    projected: Projected, biases: Biases, heads: Heads, is_causal: bool, dropout: Dropout
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return softmax(Q K^T / sqrt(d_k)) V of all heads, Eq. 1 of section 3.2.1, and the weights.

    Parameters
    ----------
    projected : Projected
        Before their biases.
    biases : Biases
    heads : Heads
    is_causal : bool
        Whether a query may see no later keys.
    dropout : Dropout
        Of weights.

    Returns
    -------
    output : Tensor of shape (N, H d_v)
    weights : Tensor of shape (B H S, T rounded up)
        Before dropout, with S and T of the longest sentences.
    """
    shape = Shape.of(heads, projected)
    dtype, columns = projected.query.dtype, math.ceil(shape.longest_query / LANES) * LANES
    output = empty(len(projected.query), heads.count * heads.value_width, dtype)
    weights = empty(shape.batch * shape.heads * shape.longest_key, columns, dtype)
    library(dtype).attention(
        pointers(projected, biases), is_causal, heads.key_width**-0.5, dropout, at(output), at(weights), shape,
        len(output),
    )  # fmt: skip
    return output, weights


def attention_backward(
    projected: Projected,
    biases: Biases,
    heads: Heads,
    weights: torch.Tensor,
    d_output: torch.Tensor,
    dropout: Dropout,
    into: Projected,
) -> None:
    """Write the gradients of `attention` with respect to queries, keys and values `into` such columns."""
    shape = Shape.of(heads, projected)
    library(weights.dtype).attention_backward(
        pointers(projected, biases), at(weights), at(d_output), heads.key_width**-0.5, dropout, *map(at, into), shape
    )


def pointers(projected: Projected, biases: Biases) -> Pointers:
    """Return where queries, keys, values and their biases are."""
    return Pointers(*map(at, projected), *map(at, biases))


def softmax_minus_target_(
    logits: torch.Tensor,
    labels: torch.Tensor,
    nll_weight: float,
    logsumexps: torch.Tensor,
    target_logits: torch.Tensor,
) -> None:
    """Overwrite (N, V) `logits` with their softmax, less `nll_weight` at the (N,) `labels`.

    What it needs of them besides goes to the (N,) `logsumexps` and `target_logits`, in float32. Where a label is -100,
    all of this is zero.
    """
    library(logits.dtype).softmax_minus_target(
        at(logits), at(labels), nll_weight, at(logsumexps), at(target_logits), *logits.shape
    )


def softmaxes_minus_target_(
    logits: torch.Tensor,
    labels: torch.Tensor,
    nll_weight: float,
    logsumexps: torch.Tensor,
    target_logits: torch.Tensor,
    rdrop_alpha: float,
) -> torch.Tensor:
    """Do the same for the (2 N, V) `logits` of two predictions; return how far apart they are at each label (N,).

    The divergence is R-Drop's (`training.objective.divergence`), of which `rdrop_alpha` times the gradient is added.
    The others, `logsumexps` and `target_logits`, are (2, N).
    """
    divergences = torch.empty(len(labels), dtype=torch.float32)
    library(logits.dtype).softmaxes_minus_target(
        at(logits), at(labels), nll_weight, rdrop_alpha, at(logsumexps), at(target_logits), at(divergences),
        len(labels), logits.shape[1],
    )  # fmt: skip
    return divergences
