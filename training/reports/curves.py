"""The curves of runs over their updates, and histograms: drawn by matplotlib, as SVG and PNG."""

import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from training.reports.records import RunRecord
from vaswani.pictures.look import DASHES, LIGHT, MATPLOTLIB, SERIES, line_style
from vaswani.scoring.lengths import bleu_of, buckets


MOST_POINTS = 500  # of a line; more are averaged in groups


@dataclass(frozen=True)
class Curve:
    """What is drawn over the updates.

    Attributes
    ----------
    title : str
    of_updates, of_evaluations : str or None
        The key of its rows in `metrics.jsonl`.
    is_logarithmic : bool
    """

    title: str
    of_updates: str | None = None
    of_evaluations: str | None = None
    is_logarithmic: bool = False


CURVES = {
    "loss": Curve("Loss, label-smoothed, in nats a token", of_updates="loss"),
    "nll": Curve("Negative log-likelihood, in nats a token", of_updates="nll", of_evaluations="nll"),
    "perplexity": Curve("Perplexity of a token", of_evaluations="perplexity", is_logarithmic=True),
    "sacrebleu": Curve("sacreBLEU", of_evaluations="sacrebleu"),
    "chrf": Curve("chrF", of_evaluations="chrf"),
    "bracketing_f1": Curve("Labelled bracketing F1 (EVALB)", of_evaluations="bracketing_f1"),
    "learning_rate": Curve("Learning rate", of_updates="learning_rate"),
    "gradient_norm": Curve("Norm of the gradient, before clipping", of_updates="gradient_norm", is_logarithmic=True),
    "target_tokens_per_second": Curve("Target tokens a second", of_updates="target_tokens_per_second"),
    "density": Curve("Density: share of tokens that are no padding", of_updates="density"),
}


def draw_curves(runs: Sequence[RunRecord]) -> dict[str, Figure]:
    """Draw every curve of which at least one run has a point."""
    drawn = {name: draw_curve(curve, runs) for name, curve in CURVES.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def draw_curve(curve: Curve, runs: Sequence[RunRecord]) -> Figure | None:
    """Draw one line a run over its updates, and a mark for each evaluation on validation; None without any point."""
    figure, axes = begin(curve.title, "update")
    has_points = False
    for number, run in enumerate(runs):
        style = line_style(number)
        points = thinned(points_of(run.updates, curve.of_updates))
        label = {"label": run.name if curve.of_evaluations is None else f"{run.name}, training"}
        if len(points):
            axes.plot(*points.T, **style, **label)
            has_points = True
        on_validation = [row for row in run.evaluations if row["split"] == "validation"]
        points = points_of(on_validation, curve.of_evaluations)
        if len(points):
            axes.plot(*points.T, **style, marker="o", ms=5, mfc="none", alpha=0.9, label=f"{run.name}, validation")
            has_points = True
    if not has_points:
        return None
    if curve.is_logarithmic:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}" if high < 20 * low else NullFormatter())
    finish(figure, axes)
    return figure


def points_of(rows: Iterable[dict], key: str | None) -> np.ndarray:
    """Return (N, 2): update and value, of the rows that have one."""
    points = [(row["step"], row[key]) for row in rows if key is not None and row.get(key) is not None]
    return np.array(points, dtype=float).reshape(-1, 2)


def thinned(points: np.ndarray) -> np.ndarray:
    """Average neighbours where there are more points than anybody can see."""
    size = max(1, math.ceil(len(points) / MOST_POINTS))
    groups = range(0, len(points), size)
    return np.array([points[start : start + size].mean(0) for start in groups]).reshape(-1, 2)


def draw_lengths(lengths: dict[str, list[int]]) -> Figure | None:
    """Draw how many training sentences have how many tokens, on each side."""
    if not lengths:
        return None
    figure, axes = begin("Training sentences by their length", "tokens", "sentences")
    for (side, counts), color, dash in zip(lengths.items(), SERIES, DASHES, strict=False):
        axes.plot(range(len(counts)), counts, drawstyle="steps-mid", color=LIGHT[color], linestyle=dash, label=side)
    finish(figure, axes)
    return figure


def draw_by_length(runs: Sequence[RunRecord], split: str) -> Figure | None:
    """Draw BLEU, or F1, of the last evaluation of each run by the words of the source."""
    figure, axes = begin(f"Score by the length of the source, {split}", "words of the source", "score")
    has_any = False
    for number, run in enumerate(runs):
        scores = scores_by_length(run, split)
        if scores:
            axes.plot(list(scores), list(scores.values()), **line_style(number), marker="o", label=run.name)
            has_any = True
    if not has_any:
        return None
    finish(figure, axes)
    return figure


def scores_by_length(run: RunRecord, split: str) -> dict[str, float]:
    """Return BLEU, of a parser F1, of the last evaluation on a split, by the words of the source."""
    if run.is_parser:
        rows = [row for row in run.evaluations if row["split"] == split]
        groups = rows[-1]["bracketing_f1_by_length"] if rows else {}
        return {name: group["bracketing_f1"] for name, group in groups.items() if group["sentences"]}
    scored_as = run.recipe.get("target_lang"), run.recipe.get("tokenized", False)
    return {
        part.name: bleu_of(part, last.outputs, last.references, *scored_as)
        for last in run.outputs(split)[-1:]
        for part in buckets(last.sources)
    }


def begin(title: str, x: str, y: str = "") -> tuple[Figure, Axes]:
    """Begin a drawing in the look of all."""
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(5.6, 3.4), layout="constrained")
        axes = figure.add_subplot()
        axes.set(title=title, xlabel=x, ylabel=y)
    return figure, axes


def finish(figure: Figure, axes: Axes) -> None:
    """Add the legend, if there is more than one thing to tell apart, and put all in its place."""
    handles, labels = axes.get_legend_handles_labels()
    with matplotlib.rc_context(MATPLOTLIB):
        if len(handles) > 1:
            figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8)
        figure.draw_without_rendering()
        figure.set_layout_engine(None)  # it would find the places again for each file


def as_svg(figure: Figure, description: str) -> str:
    """Return the SVG element of a drawing, with a description that is read aloud."""
    buffer = io.StringIO()
    with matplotlib.rc_context(MATPLOTLIB):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Title": description})
    return buffer.getvalue()[buffer.getvalue().index("<svg") :]
