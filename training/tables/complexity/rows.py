"""The rows of Table 1 and what the paper says of them, with the layers of section 4 that it counts in its text."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from training.tables.complexity.layers import (
    BlockSelfAttention,
    Convolution,
    DilatedConvolution,
    Layer,
    ProjectedSelfAttention,
    Recurrent,
    RestrictedSelfAttention,
    SelfAttention,
    SeparableConvolution,
)


@dataclass(frozen=True)
class Size:
    """How large a layer and its input are.

    Parameters
    ----------
    n : int
        Positions.
    d : int
        Width.
    k : int, optional
        Width of the kernel, where there is one.
    r : int, optional
        Size of the neighborhood, where there is one.
    """

    n: int
    d: int
    k: int | None = None
    r: int | None = None


@dataclass(frozen=True)
class Row:
    """A layer, and the paper's claims; those that the paper does not make, but follow as easily, end in a star.

    Parameters
    ----------
    name : str
        As ``--layers`` has it.
    title : str
    axes : str
        The letters of `Size` that its cost depends on.
    make : callable
        From a size to the layer.
    complexity, sequential, path : str
        The three columns of the table.
    is_logarithmic : bool
        Whether its path grows with log_k n, and not with a power of n.
    """

    name: str
    title: str
    axes: str
    make: Callable[[Size], Layer]
    complexity: str
    sequential: str
    path: str
    is_logarithmic: bool = False

    def size(self, n: int, d: int, k: int, r: int) -> Size:
        """Return a size without the numbers that the layer does not have."""
        return Size(n, d, k if "k" in self.axes else None, r if "r" in self.axes else None)


ROWS = {
    row.name: row
    for row in (
        Row("self-attention", "self-attention", "nd", lambda _: SelfAttention(), "O(n² d)", "O(1)", "O(1)"),
        Row(
            "projected",
            "self-attention with projections",
            "nd",
            lambda size: ProjectedSelfAttention(size.d),
            "O(n² d + n d²) *",
            "O(1) *",
            "O(1) *",
        ),
        Row(
            "restricted",
            "restricted self-attention",
            "ndr",
            lambda size: RestrictedSelfAttention(size.r),
            "O(r n d)",
            "O(1)",
            "O(n/r)",
        ),
        Row(
            "blocks",
            "self-attention in blocks",
            "ndr",
            lambda size: BlockSelfAttention(size.r),
            "O(r n d) *",
            "O(1) *",
            "∞ *",
        ),
        Row("recurrent", "recurrent (Elman)", "nd", lambda size: Recurrent(size.d), "O(n d²)", "O(n)", "O(n)"),
        Row(
            "lstm",
            "recurrent (LSTM)",
            "nd",
            lambda size: Recurrent(size.d, nn.LSTM),
            "O(n d²)",
            "O(n)",
            "O(n)",
        ),
        Row(
            "convolution",
            "convolution, contiguous",
            "ndk",
            lambda size: Convolution(size.d, size.k),
            "O(k n d²)",
            "O(1)",
            "O(n/k)",
        ),
        Row(
            "dilated",
            "convolution, dilated",
            "ndk",
            lambda size: DilatedConvolution(size.d, size.k),
            "O(k n d²)",
            "O(1)",
            "O(log_k n)",
            is_logarithmic=True,
        ),
        Row(
            "separable",
            "convolution, separable",
            "ndk",
            lambda size: SeparableConvolution(size.d, size.k),
            "O(k n d + n d²)",
            "O(1)",
            "O(n/k)",
        ),
    )
}
