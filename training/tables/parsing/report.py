"""Table 4 as it stands: parsers trained here beside floors and the paper, as Markdown, CSV and a picture."""

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from training.tables.layout import markdown, write_csv
from training.tables.parsing.measuring import SEARCHES
from training.tables.parsing.rows import PAPER_ROWS, Row
from vaswani.pictures.look import DASHES, LIGHT, MATPLOTLIB
from vaswani.results import ParsingEvaluation


@dataclass(frozen=True)
class Result:
    """A parser's scores on the test split, or on validation where there is no other.

    Attributes
    ----------
    name : str
    search : str
        One of `SEARCHES`, or "" for a floor.
    trees : int
        That it was trained on.
    seconds : float or None
        Of its training.
    row : Row or None
        None for a floor.
    """

    name: str
    search: str
    trees: int
    evaluation: ParsingEvaluation
    seconds: float | None = None
    row: Row | None = None


# Colour and mark.
STYLES = dict(zip(SEARCHES, (("orange", "v"), ("green", "s"), ("blue", "o")), strict=True))
COLUMNS = {
    "F1": "bracketing_f1",
    "recall": "bracketing_recall",
    "precision": "bracketing_precision",
    "exact": "exact_match",
    "tags": "tagging_accuracy",
    "crossing": "average_crossing",
    "well-formed": "well_formed",
    "errors": "evalb_errors",
}


def write_report(results: Sequence[Result], conditions: str, command: str, folder: Path) -> None:
    """Write `table4.md`, `.csv` and `.png` of what has finished."""
    (folder / "table4.md").write_text(write_markdown(results, conditions, command), encoding="utf-8")
    rows = [
        {"name": result.name, "search": result.search, "trees": result.trees, "seconds": result.seconds}
        | {name: value for name, value in asdict(result.evaluation).items() if isinstance(value, int | float)}
        for result in results
    ]
    if rows:
        write_csv(folder / "table4.csv", rows)
        draw(results, folder / "table4.png")


def write_markdown(results: Sequence[Result], conditions: str, command: str) -> str:
    """Write the Markdown: conditions, scores, scores by length, and the paper's table."""
    parts = ["# Table 4", f"`{command}`", conditions]
    if results:
        parts += [f"## Scores on the {results[0].evaluation.split} split", scores(results)]
        parts += ["## F1 by words of the sentence", by_length(results)]
    parts += ["## The paper's table", papers_table()]
    return "\n\n".join(parts) + "\n"


def scores(results: Sequence[Result]) -> str:
    """Write what EVALB says of each parser."""
    lines = []
    for result in results:
        cells = [_cell(getattr(result.evaluation, field)) for field in COLUMNS.values()]
        seconds = "" if result.seconds is None else f"{result.seconds:,.0f}"
        lines.append([result.name, result.search, f"{result.trees:,}", seconds, *cells])
    return markdown(["trained on", "search", "trees", "training seconds", *COLUMNS], lines)


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def by_length(results: Sequence[Result]) -> str:
    """Write F1 of sentences of similar length."""
    groups = results[0].evaluation.bracketing_f1_by_length
    titles = [f"{name} ({group['sentences']:.0f})" for name, group in groups.items()]
    lines = [
        [result.name, result.search]
        + [f"{group['bracketing_f1']:.1f}" for group in result.evaluation.bracketing_f1_by_length.values()]
        for result in results
    ]
    return markdown(["trained on", "search", *titles], lines)


def papers_table() -> str:
    """Write Table 4 as the paper prints it."""
    lines = [[row.parser, row.training, f"{row.f1}"] for row in PAPER_ROWS]
    return markdown(["parser", "training", "F1, section 23"], lines)


@matplotlib.rc_context(MATPLOTLIB)
def draw(results: Sequence[Result], path: Path) -> None:
    """Draw F1 over the trees that a parser was trained on, and F1 by the length of the sentence."""
    figure = Figure(figsize=(11, 5.4), layout="constrained")
    over_trees, over_length = figure.subplots(1, 2)
    floors = [result for result in results if result.row is None]
    for floor, dashes in zip(floors, DASHES, strict=False):
        style = {"color": LIGHT["grey"], "linestyle": dashes, "label": floor.name}
        over_trees.axhline(floor.evaluation.bracketing_f1, **style)
        plot_by_length(over_length, floor, style)
    for (search, (color, marker)), is_plain in itertools.product(STYLES.items(), (False, True)):
        parsers = [
            found for found in results if found.row and (found.search, found.row.is_plain) == (search, is_plain)
        ]
        style = {"color": LIGHT[color], "marker": marker, "label": f"Transformer, {search}"}
        if is_plain:
            style |= {"fillstyle": "none", "linestyle": ":", "label": f"{style['label']}, nothing made of the trees"}
        if parsers:
            scores = [parser.evaluation.bracketing_f1 for parser in parsers]
            over_trees.plot([parser.trees for parser in parsers], scores, **style)
        for parser in parsers:
            if parser.row.share == 1:
                plot_by_length(over_length, parser, style)
    over_trees.set(xlabel="trees of the training split", ylabel="F1 (EVALB)")
    over_length.set(xlabel="words of the sentence", ylabel="F1 (EVALB), all trees")
    figure.legend(*over_trees.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=9)
    figure.savefig(path, dpi=150)


def plot_by_length(axes: Axes, result: Result, style: dict[str, Any]) -> None:
    """Draw F1 of sentences of similar length."""
    groups = result.evaluation.bracketing_f1_by_length
    axes.plot(list(groups), [group["bracketing_f1"] for group in groups.values()], **style)
