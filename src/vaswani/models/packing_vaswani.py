"""Weights that are laid out once for many matrix products, and kept for as long as none of them changes."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.functional import linear, pad


T = TypeVar("T")

# oneDNN arranges a weight for products of this many rows; with 1 to 400 rows they were as fast by that arrangement.
ROWS = 64
# What was made of a module's weights, and the fingerprints of these. It lies beside the modules, not in them: copies,
# pickles and state dicts of a model know nothing of it.
KEPT: WeakKeyDictionary[nn.Module, dict[str, tuple[Hashable, Any]]] = WeakKeyDictionary()


class Projection:
    """The function of one or several linear layers: (..., D) states to (..., W).

    Parameters
    ----------
    multiply : callable
    bias : Tensor of shape (W,), or None
        What is to be added, if `multiply` has not done so.
    """

    is_int8 = False

    def __init__(self, multiply: Callable[[torch.Tensor], torch.Tensor], bias: torch.Tensor | None = None):
        self.multiply, self.bias = multiply, bias

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """Compute."""
        return self.multiply(states)


def projection(owner: nn.Module, name: str, layers: Sequence[Any]) -> Projection:
    """Return the function x -> [x W_1^T + b_1, x W_2^T + b_2, ...], side by side in the last dimension.

    oneDNN, which multiplies bfloat16 on CPUs, would rearrange a weight in every call. It is rearranged once, for as
    long as no weight changes.

    Parameters
    ----------
    owner : nn.Module
        With which the rearranged weight lives and dies.
    name : str
        Tells this projection from the owner's others.
    layers : sequence of nn.Linear
        Or of another kind that knows itself how several do their work at once, as `Int8Linear` does.
    """
    if hasattr(layers[0], "side_by_side"):
        return type(layers[0]).side_by_side(owner, name, layers)
    if not can_be_packed(layers[0].weight):
        if len(layers) == 1:
            return Projection(layers[0])
        weight, bias = kept(owner, name, layers, lambda: side_by_side(layers))
        return Projection(lambda states: linear(states, weight, bias))
    packed, bias = kept(owner, name, layers, lambda: _pack(*side_by_side(layers)))
    return Projection(lambda states: torch.ops.mkldnn._linear_pointwise(states, packed, bias, "none", [], ""))


def one_by_one(layers: Sequence[nn.Linear]) -> Projection:
    """Return the same function, by as many products: nothing is copied, and nothing has to be compared."""
    if len(layers) == 1:
        return Projection(layers[0])
    return Projection(lambda states: torch.cat([layer(states) for layer in layers], dim=-1))


def side_by_side(layers: Sequence[nn.Linear]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return weight and bias of one linear layer that does the work of several, any of which may lack a bias."""
    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    if len(layers) == 1:
        return weights[0], biases[0]
    if all(bias is None for bias in biases):
        return torch.cat(weights), None
    pairs = zip(weights, biases, strict=True)
    return torch.cat(weights), torch.cat([w.new_zeros(len(w)) if bias is None else bias for w, bias in pairs])


def rows_of(layer: Any, ids: torch.Tensor) -> Any:
    """Return a linear layer that computes the outputs with these (N,) ids alone."""
    if hasattr(layer, "rows_of"):
        return layer.rows_of(ids)
    weight, bias = layer.weight, layer.bias
    cut = nn.Linear(weight.shape[1], len(ids), bias=bias is not None, device="meta")
    cut.weight = nn.Parameter(weight[ids], requires_grad=False)
    cut.bias = None if bias is None else nn.Parameter(bias[ids], requires_grad=False)
    return cut


def can_be_packed(weight: torch.Tensor) -> bool:
    """Tell whether oneDNN multiplies by weights of this kind, and can use one that was rearranged once."""
    if weight.dtype is not torch.bfloat16 or weight.device.type != "cpu":
        return False
    has_both = all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
    return has_both and multiplies_bfloat16()


def multiplies_bfloat16() -> bool:
    """Tell whether this CPU multiplies bfloat16 by oneDNN: on x86 that takes AVX-512 or newer instructions.

    Without them PyTorch does it by loops that are up to 60 times slower than its products in float32 (measured on
    Zen 3).
    """
    is_supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)  # PyTorch may be built without oneDNN
    return is_supported is not None and is_supported()


def _pack(weight: torch.Tensor, bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    return torch.ops.mkldnn._reorder_linear_weight(weight, ROWS), bias


def kept(owner: nn.Module, name: str, layers: Sequence[Any], make: Callable[[], T]) -> T:
    """Return what `make` makes of the layers' weights: what it made the last time, if none of them has changed."""
    tensors = [tensor for layer in layers for tensor in (layer.weight, layer.bias) if tensor is not None]
    fingerprints = tuple(map(fingerprint, tensors))
    entries = KEPT.setdefault(owner, {})
    if name not in entries or entries[name][0] != fingerprints:
        entries.pop(name, None)  # first, so that never both are in memory
        entries[name] = (fingerprints, make())
    return entries[name][1]


def fingerprint(weight: torch.Tensor) -> Hashable:
    """Return what differs as soon as a weight is another one, or is written to."""
    version = 0 if weight.is_inference() else weight._version
    return weight.data_ptr(), version, weight.dtype, weight.device, checksums(weight.detach())


def checksums(weight: torch.Tensor) -> tuple[int, ...]:
    """Return sums that change with any value, or its place: what writes through `weight.data` leaves no version.

    The bytes are added as integers of 64 bits, as fast as memory is read.
    """
    rows = (weight.flatten(1) if weight.dim() > 1 else weight[None]).contiguous().view(torch.uint8)
    if rows.shape[1] % 8 or rows.storage_offset() % 8:
        rows = pad(rows, (0, -rows.shape[1] % 8)).clone()
    words = rows.view(torch.int64)
    sums = words.sum(1), words.sum(0)
    places = torch.arange(1, max(words.shape, default=0) + 1, device=weight.device)
    return tuple(int((each * places[: len(each)]).sum()) for each in sums)


__all__ = ["Projection", "kept", "multiplies_bfloat16", "one_by_one", "projection", "rows_of"]
