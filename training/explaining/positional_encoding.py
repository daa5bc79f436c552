"""The positional encoding of section 3.5 as a picture, with the matrices that turn one position into another."""

from collections.abc import Sequence

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from vaswani.models.modeling_vaswani import sinusoids
from vaswani.pictures.look import DASHES, LIGHT, MATPLOTLIB, SERIES


D_MODEL = 128
OFFSETS = (1, 10, 100)
CHECKED = range(10_000)  # positions
# The nearer to zero, the more transparent, so that zero is the paper in the light theme and in the dark one.
ENDS = (("blue", 1), ("blue", 0), ("orange", 0), ("orange", 1))
VALUES = LinearSegmentedColormap.from_list("values", [to_rgba(LIGHT[color], alpha) for color, alpha in ENDS])


def encodings(positions: Sequence[int]) -> np.ndarray:
    """Return PE of (T,) positions: (T, D_MODEL)."""
    return sinusoids(torch.tensor(positions), D_MODEL).numpy()


def shift_matrix(offset: int) -> np.ndarray:
    """Return M_k of (D_MODEL, D_MODEL), for which M_k PE(pos) = PE(pos + k) at every position.

    Notes
    -----
    It turns each pair (sin a, cos a) of PE(pos) by an angle b, whose sine and cosine stand in PE(k):
    sin(a + b) = cos b sin a + sin b cos a, and cos(a + b) = -sin b sin a + cos b cos a.
    """
    sines, cosines = encodings([offset])[0].reshape(-1, 2).T
    matrix = np.zeros((D_MODEL, D_MODEL))
    even, odd = np.arange(D_MODEL).reshape(-1, 2).T
    matrix[even, even], matrix[even, odd] = cosines, sines
    matrix[odd, even], matrix[odd, odd] = -sines, cosines
    return matrix


def shifted(positions: Sequence[int], offset: int) -> np.ndarray:
    """Return M_k PE(pos) of (T,) positions: (T, D_MODEL)."""
    return encodings(positions) @ shift_matrix(offset).T


def shift_error(positions: Sequence[int], offset: int) -> float:
    """Return the largest difference between M_k PE(pos) and PE(pos + k) over positions and dimensions."""
    return float(np.abs(shifted(positions, offset) - encodings([pos + offset for pos in positions])).max())


@matplotlib.rc_context(MATPLOTLIB)
def draw() -> Figure:
    """Draw the encodings, a matrix, encodings times matrices, and dot products."""
    figure = Figure(figsize=(11, 9), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1, hspace=0.04, wspace=0.04))
    figure.suptitle(f"Positional encoding (section 3.5), here with {D_MODEL} dimensions", fontsize=14)
    (upper_left, upper_right), (lower_left, lower_right) = figure.subplots(2, 2)
    draw_encodings(upper_left)
    draw_matrix(upper_right)
    draw_shifted(lower_left)
    draw_products(lower_right)
    return figure


def draw_encodings(axes: Axes) -> None:
    """Draw PE, a row for each position."""
    draw_values(axes, encodings(range(100)))
    axes.set(
        title="Every position has its own pattern, a row:\nquick waves on the left, slow ones on the right",
        xlabel="dimension",
        ylabel="position",
    )


def draw_matrix(axes: Axes, offset: int = 10, shown: int = 16) -> None:
    """Draw the first rows and columns of M_k."""
    draw_values(axes, shift_matrix(offset)[:shown, :shown])
    axes.set(
        title=f"The matrix that leads {offset} positions on, from any position:\nit rotates each pair of dimensions",
        xlabel=f"dimension of the encoding here (first {shown})",
        ylabel=f"dimension {offset} positions on (first {shown})",
    )


def draw_values(axes: Axes, values: np.ndarray) -> None:
    """Draw numbers from -1 to 1 as colours, with a colour bar."""
    image = axes.imshow(values, cmap=VALUES, vmin=-1, vmax=1, aspect="auto", interpolation="none")
    axes.grid(visible=False)
    bar = axes.figure.colorbar(image, ax=axes, ticks=[-1, 0, 1])
    bar.solids.set_rasterized(True)


def draw_shifted(axes: Axes, dimension: int = 20) -> None:
    """Draw one dimension of PE(pos + k) as lines, and of M_k PE(pos) as marks."""
    positions = range(5000, 5041)
    for offset, color, dash, marker in zip(OFFSETS, SERIES, DASHES, "osv", strict=False):
        further = encodings([pos + offset for pos in positions])
        axes.plot(positions, further[:, dimension], color=LIGHT[color], linestyle=dash)
        axes.plot(
            positions,
            shifted(positions, offset)[:, dimension],
            color=LIGHT[color],
            linestyle="",
            marker=marker,
            markerfacecolor="none",
            label=f"{offset} on: {shift_error(CHECKED, offset):.0e}",
        )
    axes.set(
        title="Lines: the encoding 1, 10 and 100 positions on.\nMarks: the encoding here, times the matrix",
        xlabel="position",
        ylabel=f"value of dimension {dimension}",
    )
    title = f"Largest difference in all dimensions, over {len(CHECKED):,} positions"
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), title=title)


def draw_products(axes: Axes) -> None:
    """Draw PE(pos) . PE(pos + k) over k, from several positions."""
    offsets = np.arange(-50, 51)
    for number, (position, marker) in enumerate(((100, ""), (1000, "o"), (10_000, "s"))):
        products = encodings(position + offsets) @ encodings([position])[0]
        axes.plot(
            offsets,
            products,
            color=LIGHT[SERIES[number]],
            linestyle="" if marker else "-",
            marker=marker,
            markerfacecolor="none",
            markevery=(2 * number, 4),
            label=f"from position {position:,}",
        )
    axes.set(
        title="How alike two positions are (dot product)\ndepends on nothing but their distance",
        xlabel="distance in positions",
        ylabel="dot product of the two encodings",
    )
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16))
