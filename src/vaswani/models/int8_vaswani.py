"""Dynamic int8 on a CPU: weights with a scale per output, activations with a scale per row.

A quarter of float32's memory, twice the speed of bfloat16 where the CPU multiplies int8 (VNNI), and two to five times
that of float32 where it does not, but has AVX2. Each row has a scale of its own, so that a sentence's translation does
not depend on the sentences beside it.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import embedding

from .packing_vaswani import Projection, kept


LARGEST = 127  # of int8, used symmetrically


class OneDnn:
    """The product of rows and a weight by oneDNN, for CPUs with VNNI: float32, without the rows' scales.

    Parameters
    ----------
    weight : Tensor of shape (N, D) and type int8
    scales : Tensor of shape (N,)
    """

    largest = LARGEST  # of rows
    # Rows with which it is faster to multiply by a weight as it is, some dozens of times, than to pack it first.
    few_rows = 64

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor):
        self.packed, self.scales = torch.ops.onednn.qlinear_prepack(weight, None), scales
        self.zeros = torch.zeros(len(weight), dtype=torch.int64)

    @classmethod
    def quantize(cls, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (R, D) states as they are multiplied fast, unsigned: shifted by a zero point; and their scales."""
        rows, scales = quantize_rows(states, cls.largest)
        return rows.view(torch.uint8).add_(cls.largest + 1), scales

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Multiply (R, D) rows of `quantize`."""
        # y = x W^T with a scale per output and none (1) for x; no bias; float32; nothing fused behind it
        zero_point = self.largest + 1
        return torch.ops.onednn.qlinear_pointwise(
            rows, 1.0, zero_point, self.packed, self.scales, self.zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )


class Fbgemm:
    """The same by FBGEMM, for CPUs with AVX2.

    These add two products of 8 bits each in 16, where those of the largest rows and weights must not overflow: rows
    have 7 bits.
    """

    largest = 63
    few_rows = 0  # multiplying by a weight as it is takes ten times as long

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor):
        zeros = torch.zeros(len(weight), dtype=torch.int64)
        with warnings.catch_warnings():  # that a release to come may lack this, for which `kernel_problem` is there
            warnings.simplefilter("ignore", UserWarning)
            quantized = torch._make_per_channel_quantized_tensor(weight, scales.double(), zeros, 0)
        self.packed = torch.ops.quantized.linear_prepack(quantized, None)

    @classmethod
    def quantize(cls, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (R, D) states as whole numbers in float32, which the kernel makes bytes itself; and their scales."""
        rows, scales = round_rows(states, cls.largest)
        return rows.float(), scales

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Multiply (R, D) rows of `quantize`."""
        return torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            rows, 1.0, self.largest + 1, self.packed
        )


KERNEL: type[OneDnn | Fbgemm] = OneDnn if getattr(torch.cpu, "_is_vnni_supported", lambda: False)() else Fbgemm


class Int8Linear(nn.Module):
    """A linear layer with an int8 weight: y = (x_q W_q^T) s_x s_w + b, computed in float32 except the product.

    Parameters
    ----------
    weight : Tensor of shape (N, D) and type int8
    scales : Tensor of shape (N,)
    bias : Tensor of shape (N,), or None
    """

    weight: torch.Tensor
    scales: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.register_buffer("weight", weight)
        self.register_buffer("scales", scales)
        self.register_buffer("bias", bias)
        super().train(False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.side_by_side(self, "weight", [self])(states)

    def train(self, mode: bool = True) -> "Int8Linear":
        if mode:
            raise ValueError("a model in int8 cannot be trained: load it again, and leave quantize() out")
        return super().train(mode)

    def rows_of(self, ids: torch.Tensor) -> "Int8Linear":
        """Return a layer that computes the outputs with these (N,) ids alone, for a single search."""
        bias = None if self.bias is None else self.bias[ids]
        return CutInt8Linear(self.weight.index_select(0, ids), self.scales[ids], bias)

    @staticmethod
    def side_by_side(owner: nn.Module, name: str, layers: Sequence["Int8Linear"]) -> Projection:
        """Return the function that does the work of several layers: see `packing_vaswani.projection`."""
        return Int8Projection(*kept(owner, name, layers, lambda: _pack(layers)))


class CutInt8Linear(Int8Linear):
    """Some outputs of an `Int8Linear`."""

    @staticmethod
    def side_by_side(owner: nn.Module, name: str, layers: Sequence[Int8Linear]) -> Projection:
        """Return the function that does a layer's work: it packs the weight only where that pays."""
        return CutInt8Projection(*layers)


class Int8Projection(Projection):
    """The function of one or several `Int8Linear`.

    Parameters
    ----------
    multiply : callable
        Of (R, D) rows of `quantize_states`, which returns float32, without their scales and the bias.
    bias : Tensor of shape (N,), or None
    """

    is_int8 = True

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        rows, scales = quantize_states(states)
        output = self.multiply(rows)
        output = output.mul_(scales) if self.bias is None else torch.addcmul(self.bias, output, scales, out=output)
        return output.to(states.dtype)


class CutInt8Projection(Int8Projection):
    """The function of one `Int8Linear` whose weight is packed once many rows are to be multiplied by it.

    Parameters
    ----------
    layer : Int8Linear
    """

    def __init__(self, layer: Int8Linear):
        self.layer, self.scales = layer, layer.scales.float()
        self.bias = None if layer.bias is None else layer.bias.float()
        self.packed: Callable[[torch.Tensor], torch.Tensor] | None = None

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        """Do what a packed weight does, to the last bit."""
        if self.packed is None and len(rows) <= KERNEL.few_rows:
            signed = rows.sub(KERNEL.largest + 1).view(torch.int8)
            return torch._int_mm(signed, self.layer.weight.T) * self.scales
        if self.packed is None:
            self.packed = _pack([self.layer])[0]
        return self.packed(rows)


class Int8Embedding(nn.Module):
    """An embedding whose rows are int8, each with a scale."""

    weight: torch.Tensor
    scales: torch.Tensor

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor):
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("scales", scales)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return embedding(ids, self.weight) * embedding(ids, self.scales[:, None])


def quantize_rows(states: torch.Tensor, largest: int = LARGEST) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (..., D) states in int8, and the (..., 1) scales that give them back up to half a step of rounding."""
    rows, scales = round_rows(states, largest)
    return rows.to(torch.int8), scales


def round_rows(states: torch.Tensor, largest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (..., D) states as whole numbers from -`largest` to `largest`, and their (..., 1) scales."""
    scales = states.abs().amax(-1, keepdim=True).float().clamp_(min=torch.finfo(torch.float32).tiny).div_(largest)
    return (states / scales).round_(), scales


def quantize_states(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (R, D) states as the kernel of this CPU multiplies them, and their (R, 1) scales."""
    return KERNEL.quantize(states)


def _pack(layers: Sequence[Int8Linear]) -> tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor | None]:
    """Return the product with the weights of several layers, side by side, and their bias."""
    weight, scales = (torch.cat([getattr(layer, name) for layer in layers]) for name in ("weight", "scales"))
    biases = [torch.zeros(layer.out_features) if layer.bias is None else layer.bias.float() for layer in layers]
    bias = None if all(layer.bias is None for layer in layers) else torch.cat(biases)
    return KERNEL(weight, scales.float()), bias


class Int8IsMissing(ValueError):
    """The CPU, or this release of torch, cannot multiply int8 fast."""


def quantize(model: Any) -> None:
    """Put int8 in the place of all matrices of a model, embeddings included.

    Raises
    ------
    Int8IsMissing
        If this machine cannot.
    ValueError
        If the model is not one that can be quantized.
    """
    problem = problem_of(model)
    if problem is not None:
        raise ValueError(problem)
    if kernel_problem() is not None:
        raise Int8IsMissing(f"int8 is not possible here: {kernel_problem()}")
    model.eval().float().requires_grad_(False)
    tied: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by the address of a weight that several modules have

    def int8_of(weight: nn.Parameter) -> tuple[torch.Tensor, torch.Tensor]:
        if weight.data_ptr() not in tied:
            rows, scales = quantize_rows(weight.detach())
            tied[weight.data_ptr()] = rows, scales[:, 0]
        return tied[weight.data_ptr()]

    for parent in list(model.modules()):  # which keeps all weights until the end, so that no address is used twice
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                bias = None if child.bias is None else child.bias.detach()
                setattr(parent, name, Int8Linear(*int8_of(child.weight), bias))
            elif type(child) is nn.Embedding and name in ("embed_tokens", "shared"):
                setattr(parent, name, Int8Embedding(*int8_of(child.weight)))


def is_quantized(model: nn.Module) -> bool:
    """Tell whether a model was quantized by `quantize`."""
    return any(isinstance(module, Int8Linear) for module in model.modules())


def problem_of(model: nn.Module) -> str | None:
    """Say why a model cannot be quantized, or return None."""
    if is_quantized(model):
        return "the model is in int8 already"
    device = next(model.parameters()).device
    if device.type != "cpu":
        return f"int8 is for CPUs, and the model is on {str(device)!r}: quantize it there, or use bfloat16"
    adapter = next((module for module in model.modules() if hasattr(module, "base_layer")), None)
    if adapter is not None:
        return f"int8 does not go together with adapters ({type(adapter).__module__}): merge them into the model first"
    return None


@functools.cache
def kernel_problem() -> str | None:
    """Say why int8 cannot be multiplied here, or return None; a small product is tried out."""
    generator = torch.Generator().manual_seed(2017)
    # Ones are the largest there are, all along.
    weight, states = (torch.cat([torch.randn(n, 64, generator=generator), torch.ones(1, 64)]) for n in (47, 2))
    rows, scales = quantize_rows(weight)
    quantized, state_scales = quantize_rows(states, KERNEL.largest)
    exact = (quantized.double() @ rows.double().T) * state_scales * scales[:, 0]
    layer = Int8Linear(rows, scales[:, 0], None)
    try:
        computed = torch.stack([layer(states), layer.rows_of(torch.arange(len(rows)))(states)])
    except (AttributeError, RuntimeError, TypeError) as error:
        return f"torch {torch.__version__} has no kernel for it on this CPU ({str(error).splitlines()[0]})"
    is_right = torch.allclose(computed.double(), exact.expand(2, -1, -1), rtol=1e-5, atol=1e-5)
    return None if is_right else f"torch {torch.__version__} computes it otherwise than expected"


__all__ = ["Int8Embedding", "Int8IsMissing", "Int8Linear", "is_quantized", "quantize"]
