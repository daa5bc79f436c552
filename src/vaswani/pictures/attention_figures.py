"""Attention as figures: lines between two columns of tokens, as in the paper's Figures 3 to 5, and heat maps."""

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from .attention import KINDS, Attention
from .attention_page import shown
from .look import LIGHT, MATPLOTLIB, SERIES, stand_alone


MOST_TOKENS = 40  # of a side; a figure of more cannot be read
ROW = 0.26  # inches that a token takes
FAINTEST = 0.02  # weights below this are not drawn
HEAT = LinearSegmentedColormap.from_list("heat", [LIGHT["paper"], LIGHT["blue"]])


def draw_lines(attention: Attention, kind: str, layer: int, heads: Sequence[int]) -> Figure:
    """Draw the tokens in two columns, and a line for each weight of the heads: opacity is the weight, colour the head.

    Parameters
    ----------
    attention : Attention
    kind : str
        One of `KINDS` that it has.
    layer : int
        From 0.
    heads : sequence of int
        From 0.
    """
    left, right = (shown(tokens)[:MOST_TOKENS] for tokens in attention.labels(kind))
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(6, 0.8 + ROW * max(len(left), len(right))), layout="constrained")
        axes = figure.add_subplot()
        axes.axis("off")
        for number, head in enumerate(heads):
            weights = attention.weights[kind][layer, head]
            shift = 0.12 * (number - (len(heads) - 1) / 2) / max(1, len(heads) - 1)
            for row, column in np.argwhere(weights[: len(left), : len(right)] >= FAINTEST):
                axes.plot(
                    [0, 1],
                    [row + shift, column + shift],
                    color=LIGHT[SERIES[head % len(SERIES)]],
                    alpha=float(weights[row, column]),
                    linewidth=1.8,
                    solid_capstyle="butt",
                )
        for tokens, x, side in ((left, -0.03, "right"), (right, 1.03, "left")):
            for place, token in enumerate(tokens):
                axes.text(x, place, token, ha=side, va="center", family="monospace", parse_math=False)
        axes.set(xlim=(-0.6, 1.6), ylim=(max(len(left), len(right)) - 0.5, -0.5))
        figure.suptitle(title_of(attention, kind, layer, heads))
    return figure


def draw_map(attention: Attention, kind: str, layer: int, heads: Sequence[int]) -> Figure:
    """Draw a heat map a head; the parameters are those of `draw_lines`."""
    rows, columns = (shown(tokens)[:MOST_TOKENS] for tokens in attention.labels(kind))
    width, height = 1.2 + ROW * len(columns), 1.4 + ROW * len(rows)
    across = min(len(heads), 4)
    down = math.ceil(len(heads) / across)
    with matplotlib.rc_context(MATPLOTLIB | {"axes.grid": False}):
        figure = Figure(figsize=(across * width, down * height), layout="constrained")
        for place, head in enumerate(heads, start=1):
            axes: Axes = figure.add_subplot(down, across, place)
            weights = attention.weights[kind][layer, head, : len(rows), : len(columns)]
            axes.imshow(weights, cmap=HEAT, vmin=0, vmax=1)
            axes.set_xticks(range(len(columns)), columns, rotation=90, family="monospace", parse_math=False)
            axes.set_yticks(range(len(rows)), rows, family="monospace", parse_math=False)
            axes.set_title(f"head {head + 1}")
        figure.suptitle(title_of(attention, kind, layer, heads))
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, or as SVG that follows the reader's theme."""
    with matplotlib.rc_context(MATPLOTLIB):
        figure.savefig(path, dpi=150)
    if path.suffix == ".svg":
        svg = path.read_text(encoding="utf-8")
        path.write_text(stand_alone(svg[svg.index("<svg") :]), encoding="utf-8")


def title_of(attention: Attention, kind: str, layer: int, heads: Sequence[int]) -> str:
    """Say what a figure shows, and what it had no room for."""
    said = f"{KINDS[kind]}, layer {layer + 1}, head {', '.join(str(head + 1) for head in heads)}"
    longest = max(map(len, attention.labels(kind)))
    return said + (f"\n(the first {MOST_TOKENS} of {longest} tokens)" if longest > MOST_TOKENS else "")
