"""Learning curves as they stand: Markdown, CSV and a picture."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

from training.tables.curves.points import SCORES, Point, doublings, share_of_training
from training.tables.layout import markdown, write_csv
from vaswani.pictures.look import LIGHT, MATPLOTLIB, line_style


SHARES_OF_TRAINING = {"an eighth": 0.125, "a quarter": 0.25, "half": 0.5}
COLUMNS = {
    "model": lambda point: Path(point.row.config).name,
    "parameters": lambda point: f"{point.parameters:,}",
    "training pairs": lambda point: f"{point.pairs:,}",
    "target tokens, millions": lambda point: f"{point.target_tokens / 1e6:.1f}",
    "minutes": lambda point: f"{point.seconds / 60:.1f}",
    "FLOPs": lambda point: f"{point.flops:.1e}",
    "BLEU, validation": lambda point: f"{point.validation['sacrebleu']:.2f}",
    "BLEU, test": lambda point: f"{point.test['sacrebleu']:.2f}",
    "chrF, test": lambda point: f"{point.test['chrf']:.2f}",
}


def write_report(points: Sequence[Point], conditions: str, command: str, folder: Path) -> None:
    """Write `curves.md`, `.csv` and `.png` of the runs that have finished."""
    (folder / "curves.md").write_text(write_markdown(points, conditions, command), encoding="utf-8")
    if not points:
        return
    rows = []
    for point in points:
        what = {"model": Path(point.row.config).name, "parameters": point.parameters, "pairs": point.pairs}
        ends = [(point.target_tokens, point.validation), (point.target_tokens, point.test)]
        for tokens, row in [*point.on_the_way, *ends]:
            measured = {name: row[name] for name in ("split", *SCORES, "nll")}
            rows.append({**what, "target_tokens": tokens, **measured})
    write_csv(folder / "curves.csv", rows)
    draw(points, folder / "curves.png")


def write_markdown(points: Sequence[Point], conditions: str, command: str) -> str:
    """Write the Markdown: conditions, the finished models, their way there, and what doubling something gave."""
    parts = ["# Learning curves", f"`{command}`", conditions]
    if points:
        finished = [[cell(point) for cell in COLUMNS.values()] for point in points]
        parts += ["## The finished models", markdown(list(COLUMNS), finished), "## On the way", on_the_way(points)]
        parts += ["![Quality over training, text and size](curves.png)"]
    found = doublings(points) if points else []
    if found:
        lines = []
        for each in found:
            factor = each.factor_of_one_point
            cost = "not in sight" if factor is None or factor > 1000 else f"{factor:.2g} times as many"
            lines.append([each.what, SCORES[each.score], f"{each.overall:+.2f}", f"{each.last:+.2f}", cost])
        titles = ["twice the", "score", "gave on average", "gave at last", "one point more would take"]
        parts += ["## What it costs", markdown(titles, lines)]
        parts.append(
            "The last column assumes that every further doubling gains as much as the last one. Gains become smaller, "
            "so one more point takes at least that much."
        )
    return "\n\n".join(parts) + "\n"


def on_the_way(points: Sequence[Point]) -> str:
    """Write BLEU on validation after shares of the training: greedy search, the weights of that update alone.

    The last update is evaluated as it is published, and so the last evaluation on the way is before it.
    """
    lines = []
    for point in points:
        rows = [share_of_training(point, share) for share in SHARES_OF_TRAINING.values()]
        rows += [row for _, row in point.on_the_way[-1:]] or [None]
        scores = ["" if row is None else f"{row['sacrebleu']:.2f}" for row in rows]
        lines.append([Path(point.row.config).name, f"{point.pairs:,}", *scores])
    titles = [f"BLEU after about {share} of the training" for share in SHARES_OF_TRAINING]
    return markdown(["model", "training pairs", *titles, "at the last evaluation on the way"], lines)


@matplotlib.rc_context(MATPLOTLIB)
def draw(points: Sequence[Point], path: Path) -> None:
    """Draw BLEU over target tokens, over the size of the text, and over the size of the model."""
    figure = Figure(figsize=(12, 4.6), layout="constrained")
    over_tokens, over_text, over_size = figure.subplots(1, 3, sharey=True)
    first = points[0].row.config
    for number, point in enumerate(points):
        label = f"{Path(point.row.config).name}, {point.pairs:,} pairs"
        scores = [row["sacrebleu"] for _, row in point.on_the_way]
        over_tokens.plot([seen for seen, _ in point.on_the_way], scores, marker=".", label=label, **line_style(number))
    by_text = [(point.pairs, point) for point in points if point.row.config == first]
    by_size = [(point.parameters, point) for point in points if point.row.share == 1]
    plot_finished(over_text, by_text, "training pairs")
    plot_finished(over_size, by_size, "parameters")
    over_tokens.set(ylabel="BLEU (sacreBLEU)")
    count_along(over_tokens, "target tokens of training")
    over_tokens.set_title("on the way: validation, greedy search")
    over_text.set_title("finished, by text")
    over_size.set_title("finished, by model, all text")
    over_tokens.legend(fontsize=8)
    figure.savefig(path, dpi=150)


def plot_finished(axes: Axes, points: Sequence[tuple[int, Point]], xlabel: str) -> None:
    """Draw BLEU of finished models on both splits."""
    ordered = sorted(points, key=lambda each: each[0])
    for split, color, marker in (("validation", "blue", "o"), ("test", "orange", "s")):
        scores = [getattr(point, split)["sacrebleu"] for _, point in ordered]
        axes.plot([x for x, _ in ordered], scores, color=LIGHT[color], marker=marker, label=split)
    count_along(axes, xlabel)
    axes.legend(fontsize=8)


def count_along(axes: Axes, xlabel: str) -> None:
    """Let x count something in proportion: 1, 2, 5, 10, with k and M for thousands and millions."""
    axes.set(xlabel=xlabel, xscale="log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_minor_locator(NullLocator())
