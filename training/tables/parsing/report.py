"""Table 4 as it stands: parsers trained here beside floors and the paper, as Markdown, CSV and a picture."""

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from training.tables.layout import markdown
from training.tables.parsing.measuring import SEARCHES
from training.tables.parsing.rows import PAPER_ROWS, Row
from vaswani.results import ParsingEvaluation


@dataclass(frozen=True)
class Result:
    """A parser's scores on the test split.

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
        with (folder / "table4.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
            writer.writeheader()
            writer.writerows(rows)
        draw(results, folder / "table4.png")


def write_markdown(results: Sequence[Result], conditions: str, command: str) -> str:
    """Write the Markdown: conditions, scores, scores by length, and the paper's table."""
    parts = ["# Table 4", f"`{command}`", conditions]
    if results:
        parts += ["## Scores on the test split", scores(results), "## F1 by words of the sentence", by_length(results)]
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


def draw(results: Sequence[Result], path: Path) -> None:
    """Draw F1 over the trees that a parser was trained on, and F1 by the length of the sentence."""
    import matplotlib.figure

    figure = matplotlib.figure.Figure(figsize=(11, 4.6), layout="constrained")
    curve, lengths = figure.subplots(1, 2)
    colors = dict(zip(SEARCHES, ("#0072B2", "#E69F00", "#D55E00"), strict=True))
    floors = [result for result in results if result.row is None]
    for style, result in zip(("-", "--", "-.", ":"), floors, strict=False):
        curve.axhline(result.evaluation.bracketing_f1, color="#999999", linestyle=style, label=result.name)
    for search, color in colors.items():
        found = [result for result in results if result.search == search and result.row]
        points = [result for result in found if result.row and not result.row.is_plain]
        plain = [result for result in found if result.row and result.row.is_plain]
        curve.plot(
            [point.trees for point in points],
            [point.evaluation.bracketing_f1 for point in points],
            marker="o",
            color=color,
            label=f"Transformer, {search}",
        )
        for result in plain:
            curve.plot(result.trees, result.evaluation.bracketing_f1, "*", color=color, ms=12)
    for result in [*floors[-2:], *[result for result in results if result.row and result.row.share == 1]]:
        groups = result.evaluation.bracketing_f1_by_length
        label = f"{result.name}, {result.search}" if result.search else result.name
        lengths.plot(list(groups), [group["bracketing_f1"] for group in groups.values()], marker="o", label=label)
    curve.set(xlabel="trees of the training split (star: nothing made of them)", ylabel="F1 (EVALB)")
    lengths.set(xlabel="words of the sentence", ylabel="F1 (EVALB)")
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.savefig(path, dpi=150)
