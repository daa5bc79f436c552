"""What happens between two matrix products of weights, as functions of tensors, which a compiler can fuse.

PyTorch runs each of their dozen operations by itself, over memory; its compiler (Inductor) makes one loop of them. The
products stay outside, with oneDNN. `AS_WRITTEN` and what `compiled` returns are the same functions.

Axis letters: see `modeling_vaswani.py`. Here also W outputs of a layer, and N keys.
"""

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import layer_norm

from .int8_vaswani import quantize_states
from .largest_vaswani import BLOCK, block_maxima
from .packing_vaswani import Projection


# What a product takes of states: the states themselves, or int8 rows and their scales, (R, D) and (R, 1).
Entering = tuple[torch.Tensor, torch.Tensor | None]


class Leaving(NamedTuple):
    """What a product gives. Where scales came in, scales and bias are still to be applied."""

    product: torch.Tensor  # (R, W)
    scales: torch.Tensor | None  # (R, 1)
    bias: torch.Tensor | None  # (W,)


def multiply(projection: Projection, entering: Entering) -> Leaving:
    """Return what a projection makes of what enters it."""
    rows, scales = entering
    return Leaving(projection.multiply(rows), scales, projection.bias)


def enter(states: torch.Tensor, dtype: torch.dtype, is_int8: bool) -> Entering:
    """Return what a product takes of (R, D) states, computed in `dtype`."""
    states = states.to(dtype)
    return quantize_states(states) if is_int8 else (states, None)


def leave(product: torch.Tensor, scales: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
    """Return the (R, W) outputs of a layer."""
    if scales is None:
        return product
    return product * scales if bias is None else torch.addcmul(bias, product, scales)


def leave_as(
    product: torch.Tensor, scales: torch.Tensor | None, bias: torch.Tensor | None, dtype: torch.dtype
) -> tuple[torch.Tensor]:
    """Return the (R, W) outputs of a layer in another type."""
    return (leave(product, scales, bias).to(dtype),)


def add_and_norm(
    product: torch.Tensor,
    scales: torch.Tensor | None,
    bias: torch.Tensor | None,
    states: torch.Tensor,
    gain: torch.Tensor,
    shift: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """LayerNorm(x + Sublayer(x)), section 3.1: return (R, D) states, and what the next product takes of them."""
    states = layer_norm(leave(product, scales, bias) + states, gain.shape, gain, shift, eps)
    return states, *enter(states, states.dtype, scales is not None)


def activate(
    product: torch.Tensor, scales: torch.Tensor | None, bias: torch.Tensor | None, activation: Callable
) -> Entering:
    """Return what W2 of Eq. 2 takes: max(0, x W1 + b1)."""
    output = activation(leave(product, scales, bias))
    return enter(output, output.dtype, scales is not None)


def fold(
    product: torch.Tensor,
    scales: torch.Tensor | None,
    bias: torch.Tensor | None,
    num_heads: int,
    widths: tuple[int, ...],
    dtype: torch.dtype,
) -> tuple[torch.Tensor, ...]:
    """Divide (B, K, W) outputs into those of several layers, and each into heads: (B * H, K, width) of each.

    `widths` are those of one head of each layer.
    """
    outputs = leave(product, scales, bias).to(dtype).split([num_heads * width for width in widths], dim=-1)
    return tuple(
        output.unflatten(-1, (num_heads, width)).transpose(1, 2).flatten(0, 1)
        for output, width in zip(outputs, widths, strict=True)
    )


def attend_alone(
    product: torch.Tensor,
    scales: torch.Tensor | None,
    bias: torch.Tensor | None,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scaling: float,
) -> Entering:
    """Return what W^O takes: attention (Eq. 1) of one query of each sentence, in one pass over its keys and values.

    Compiled, it takes a third of the time of products of matrices, which are no good for a single row.

    Parameters
    ----------
    product, scales, bias
        Of (B, H * d_k) queries.
    keys, values : Tensor of shape (B, H, d_k, N) and (B, H, N, d_v)
    mask : Tensor of shape (B, 1, N)
        Added to the scores.
    scaling : float
        1 / sqrt(d_k).
    """
    query = leave(product, scales, bias).float().unflatten(-1, (*keys.shape[1:3], 1))  # (B, H, d_k, 1)
    scores = (query * keys.float()).sum(2) * scaling + mask  # (B, H, N)
    attended = (scores.softmax(-1)[..., None] * values.float()).sum(2)  # (B, H, d_v)
    return enter(attended.flatten(1), product.dtype, scales is not None)


def self_attend_alone(
    product: torch.Tensor,
    scales: torch.Tensor | None,
    bias: torch.Tensor | None,
    open_slots: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scaling: float,
) -> Entering:
    """Do the same with queries, keys and values that one product gave, (B, H * (2 d_k + d_v)).

    Its keys and values are first put into the (1,) open slot of the others, (B, H, N, d_k) and (B, H, N, d_v).
    """
    num_heads, d_k, d_v = keys.shape[1], keys.shape[3], values.shape[3]
    outputs = leave(product, scales, bias)
    query, key, value = outputs.split([num_heads * d_k, num_heads * d_k, num_heads * d_v], dim=1)
    keys.index_copy_(2, open_slots, key.unflatten(1, (num_heads, 1, d_k)).to(keys.dtype))
    values.index_copy_(2, open_slots, value.unflatten(1, (num_heads, 1, d_v)).to(values.dtype))
    rows, _ = attend_alone(query, None, None, keys.mT, values, mask, scaling)
    return enter(rows, product.dtype, scales is not None)


def self_attend(
    product: torch.Tensor,
    scales: torch.Tensor | None,
    bias: torch.Tensor | None,
    open_slots: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    paths: torch.Tensor,
    num_heads: int,
    scaling: float,
) -> Entering:
    """Return what W^O takes: attention of each of several hypotheses to the positions on its path.

    Compiled, it reads the keys and values of these alone, where products of matrices would take all slots of all
    hypotheses, and hide most of their scores.

    Parameters
    ----------
    product, scales, bias
        Of (R, H * (2 d_k + d_v)) queries, keys and values.
    open_slots : Tensor of shape (K,)
        Where the keys and values of this position are put.
    keys, values : Tensor of shape (B, slots, H * d_k) and (B, slots, H * d_v)
    paths : Tensor of shape (B, K, T)
        The slots of the positions that each hypothesis sees.
    num_heads : int
        H.
    scaling : float
        1 / sqrt(d_k).
    """
    outputs = leave(product, scales, bias).unflatten(0, (-1, paths.shape[1]))  # (B, K, W)
    query, key, value = outputs.split([keys.shape[2], keys.shape[2], values.shape[2]], dim=2)
    keys.index_copy_(1, open_slots, key.to(keys.dtype))
    values.index_copy_(1, open_slots, value.to(values.dtype))
    sentence = torch.arange(keys.shape[0], device=keys.device)[:, None, None]
    seen_keys, seen_values = (  # (B, K, T, H, d)
        states[sentence, paths].float().unflatten(3, (num_heads, -1)) for states in (keys, values)
    )
    query = (query.float() * scaling).unflatten(2, (1, num_heads, -1))
    scores = (query * seen_keys).sum(4)  # (B, K, T, H)
    attended = (scores.softmax(2)[..., None] * seen_values).sum(2)  # (B, K, H, d_v)
    return enter(attended.flatten(2).flatten(0, 1), product.dtype, scales is not None)


def summarize(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `block_maxima` of (R, V) logits, and log sum exp of each row, (R, 1)."""
    maxima = block_maxima(logits)
    rest = logits[:, maxima.shape[1] * BLOCK :]
    tops = [part.amax(1, keepdim=True) for part in (maxima, rest) if part.shape[1]]
    top = functools.reduce(torch.maximum, tops).float()
    return maxima, top + (logits.float() - top).exp().sum(1, keepdim=True).log()


# By the position of an argument, the dimensions that differ from call to call: of rows, and of keys. In the order of
# `Fused`.
ROWS = {0: (0,), 1: (0,)}
DYNAMIC: dict[Callable, dict[int, tuple[int, ...]]] = {
    enter: {0: (0,)},
    leave_as: ROWS,
    add_and_norm: ROWS | {3: (0,)},
    activate: ROWS,
    fold: ROWS,
    attend_alone: ROWS | {3: (0, 3), 4: (0, 2), 5: (0, 2)},
    self_attend_alone: ROWS | {4: (0, 2), 5: (0, 2), 6: (0, 2)},
    self_attend: ROWS | {4: (0, 1), 5: (0, 1), 6: (0, 2)},
    summarize: {0: (0,)},
}


# The other dimensions. This is looked up in every call, so that it must be quick.
FIXED = {
    (): slice(None),
    (0,): slice(1, None),
    (0, 1): slice(2, None),
    (0, 2): slice(1, None, 2),
    (0, 3): slice(1, 3),
}


class CannotCompile(ValueError):
    """There is no compiler here, or this release of torch cannot use it."""


class Piece:
    """One of the functions above, compiled for any number of rows and of keys, once for each width and type.

    What torch.compile returns looks at all its arguments in each call, which takes as long as the work itself. Here
    the function is exported and compiled by itself, for one thread: it may run in processes that were forked.

    Parameters
    ----------
    function : callable
        Of contiguous tensors, and of what is compiled in.
    """

    def __init__(self, function: Callable):
        self.function, self.dynamic = function, DYNAMIC[function]
        self.fixed = [FIXED[self.dynamic.get(place, ())] for place in range(len(signature(function).parameters))]
        self.compiled: dict[Hashable, Callable] = {}

    def __call__(self, *arguments: Any) -> Any:
        """Compute.

        Raises
        ------
        CannotCompile
            The first time, if that is so.
        """
        given, tensors = [], []  # what is compiled in: of a tensor the type and the sizes that stay
        for argument, fixed in zip(arguments, self.fixed, strict=True):
            if isinstance(argument, torch.Tensor):
                tensors.append(argument)
                given += (argument.dtype, argument.shape[fixed])
            else:
                given.append(argument)
        key = tuple(given)
        if key not in self.compiled:
            self.compiled[key] = self._compile(arguments)
        return self.compiled[key](*tensors)

    def _compile(self, arguments: tuple[Any, ...]) -> Callable:
        tensors, shapes = [], []
        for place, each in enumerate(arguments):
            if isinstance(each, torch.Tensor):
                dynamic, sizes = self.dynamic.get(place, ()), list(each.shape)
                for dimension in dynamic:
                    sizes[dimension] *= 3  # 1 would be compiled in
                tensors.append(each.new_zeros(sizes))
                shapes.append(dict.fromkeys(dynamic, torch.export.Dim.DYNAMIC))
        call = _Call(self.function, arguments)
        try:
            from torch._inductor import standalone_compile  # takes a second, and not every torch has it

            graph = torch.export.export(call, tuple(tensors), dynamic_shapes=(tuple(shapes),)).graph_module
            for node in graph.graph.nodes:  # which sizes are dynamic is read from here
                node.meta["example_value"] = node.meta.get("val")
            inputs = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
            compiled = standalone_compile(
                graph,
                inputs,
                options={
                    "config_patches": {"cpp.threads": 1, "size_asserts": False, "assert_indirect_indexing": False}
                },
            )
        except Exception as error:  # of a compiler, of its absence, or of what torch makes of it
            problem = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise CannotCompile(f"torch {torch.__version__} cannot compile here: {problem}") from error
        return (lambda *tensors: (*compiled(*tensors), None)) if call(*tensors)[-1] is None else compiled


class _Call(nn.Module):
    """A function of tensors alone, with the other arguments of one call."""

    def __init__(self, function: Callable, arguments: tuple[Any, ...]):
        super().__init__()
        self.function, self.arguments = function, arguments

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        given = iter(tensors)
        arguments = [next(given) if isinstance(each, torch.Tensor) else each for each in self.arguments]
        outputs = self.function(*arguments)
        return outputs[:-1] if outputs[-1] is None and torch.compiler.is_exporting() else outputs


@dataclass(frozen=True)
class Fused:
    """The functions of this file, as written or compiled; None where what PyTorch has is faster than as written.

    On a GPU nothing is compiled; there `record` records whole steps: see `graphs_vaswani`.
    """

    enter: Callable = enter
    leave_as: Callable = leave_as
    add_and_norm: Callable = add_and_norm
    activate: Callable = activate
    fold: Callable = fold
    attend_alone: Callable | None = None
    self_attend_alone: Callable | None = None
    self_attend: Callable | None = None
    summarize: Callable | None = None
    record: Callable | None = None


AS_WRITTEN = Fused()


@functools.cache
def compiled() -> Fused:
    """Return the functions compiled: the same for all models of a process."""
    return Fused(*map(Piece, DYNAMIC))


__all__ = ["AS_WRITTEN", "CannotCompile", "Entering", "Fused", "Leaving", "compiled", "multiply"]
