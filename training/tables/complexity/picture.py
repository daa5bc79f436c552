"""Table 1 as a picture: how each cost grows with n, and what d_k does to a softmax."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from training.tables.complexity.fits import series
from training.tables.complexity.measuring import Grid, Record, counted_base
from training.tables.complexity.rows import Row, Size
from training.tables.complexity.softmax import KEYS, SCORES
from vaswani.pictures.look import LIGHT, MATPLOTLIB


@dataclass(frozen=True)
class Panel:
    """What one part of the picture shows over n; `is_counted` says at which sizes."""

    quantity: str
    title: str
    unit: str
    factor: float = 1.0
    is_counted: bool = False


PANELS = (
    Panel("forward_flops", "operations, forward", "GFLOP", 1e-9),
    Panel("forward_backward_seconds", "time, forward + backward", "ms", 1e3),
    Panel("forward_backward_bytes", "memory, forward + backward", "MB", 1e-6),
    Panel("sequential_operations", "sequential operations", "longest chain", is_counted=True),
    Panel("path_length", "maximum path length", "hops", is_counted=True),
)
# Colour, dash and mark; kinds of the same layer share the colour.
STYLES = {
    "self-attention": ("blue", "-", "o"),
    "projected": ("blue", "--", "D"),
    "restricted": ("green", "-", "s"),
    "blocks": ("green", "--", "P"),
    "recurrent": ("orange", "-", "v"),
    "lstm": ("orange", "--", "^"),
    "convolution": ("pink", "-", "<"),
    "dilated": ("pink", "--", ">"),
    "separable": ("pink", ":", "x"),
    "dot product": ("orange", "-.", "v"),
    "scaled dot product": ("blue", "-", "o"),
    "additive": ("green", "--", "P"),
}


@matplotlib.rc_context(MATPLOTLIB)
def draw(records: Sequence[Record], grid: Grid, paths: Sequence[Path]) -> None:
    """Draw five quantities over n and the softmax's gradient over d_k, on logarithmic axes, into files."""
    figure = Figure(figsize=(13, 8.5), layout="constrained")
    *panels, last = figure.subplots(2, 3).flat
    for panel, axes in zip(PANELS, panels, strict=True):
        for row in grid.rows:
            base = counted_base(row) if panel.is_counted else grid.base(row)
            points = series(records, panel.quantity, row.name, "n", base)
            plot(axes, row.name, [(n, value * panel.factor) for n, value in points], row.title)
        axes.set(title=f"{panel.title}\n{sizes(grid.rows, grid, panel)}", xlabel="n", ylabel=panel.unit)
    for name in SCORES:
        plot(last, name, series(records, "softmax_gradient_median", name, "d", Size(KEYS, 1)), name)
    last.set(title=f"gradient of the softmax\n{KEYS} keys", xlabel="$d_k$", ylabel="median norm of the Jacobian")
    last.legend()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    for path in paths:
        figure.savefig(path, dpi=100)


def plot(axes: Axes, name: str, points: Sequence[tuple[float, float]], label: str) -> None:
    """Draw a line through points on logarithmic axes."""
    color, dashes, marker = STYLES[name]
    xs, ys = zip(*points, strict=True)
    style = {"color": LIGHT[color], "linestyle": dashes, "marker": marker}
    axes.plot(xs, ys, **style, fillstyle="none", label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.minorticks_off()  # hundreds of them would take most of the time
    axes.xaxis.set_major_formatter("{x:g}")


def sizes(rows: Sequence[Row], grid: Grid, panel: Panel) -> str:
    """Write what does not vary in a panel."""
    bases = [counted_base(row) if panel.is_counted else grid.base(row) for row in rows]
    letters = "kr" if panel.is_counted else "dkr"
    shown = {letter: getattr(base, letter) for base in bases for letter in letters if getattr(base, letter)}
    fixed = ", ".join(f"{letter} = {shown[letter]}" for letter in letters if letter in shown)
    never = panel.quantity == "path_length" and any(row.name == "blocks" for row in rows)
    return f"{fixed}; in blocks ∞ beyond r" if never else fixed
