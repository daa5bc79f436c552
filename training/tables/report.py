"""Table 3 as it stands: the finished rows beside the paper's, as Markdown, CSV and a picture."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from training.data.vocabulary import count_types
from training.tables.layout import markdown, write_csv
from training.tables.records import Description, Measurement, ReportRow, report_rows
from training.tables.rows import ROWS, SERIES, Row
from training.tables.sweep import Run
from vaswani.pictures.look import LIGHT, MATPLOTLIB


RunsOfRows = Mapping[str, Sequence[Run]]  # by the name of the row, one for each seed
LOWER_IS_BETTER = {"perplexity": True, "bleu": False}
NAMES_OF_MEASURES = {"perplexity": "perplexity", "bleu": "BLEU"}
BARS = {
    "paper": {"facecolor": LIGHT["paper"], "edgecolor": LIGHT["faint"]},
    "here": {"facecolor": LIGHT["blue"], "edgecolor": LIGHT["blue"]},
}


@dataclass(frozen=True)
class Ordering:
    """The pairs of a series in the paper's order: which one measure orders so too, and which it does not.

    Undecided are pairs that are no further apart than two seeds of one row.
    """

    series: str
    measure: str
    agreeing: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    disagreeing: list[str] = field(default_factory=list)


def compare_orderings(measured: Mapping[str, Measurement]) -> list[Ordering]:
    """Compare, within what the paper varies together, which of two rows is better here and there.

    Rows that the paper prints as equal are left out. Where each row has one seed, no pair is undecided, and rows that
    are equal here are not ordered as in the paper.

    Parameters
    ----------
    measured : mapping of str to Measurement
        By the names of the rows that are finished.
    """
    orderings = []
    for series, names in SERIES.items():
        present = [name for name in names if name in measured]
        for measure_name in LOWER_IS_BETTER:
            luck = largest_spread(measured.values(), measure_name)
            ordering = Ordering(series, measure_name)
            for better, worse in itertools.permutations(present, 2):
                if lead(ROWS[better], ROWS[worse], measure_name) > 0:
                    here = lead(measured[better], measured[worse], measure_name)
                    undecided = luck > 0 and abs(here) <= luck
                    kind = "undecided" if undecided else "agreeing" if here > 0 else "disagreeing"
                    getattr(ordering, kind).append(f"{better} before {worse}")
            if ordering.agreeing + ordering.undecided + ordering.disagreeing:
                orderings.append(ordering)
    return orderings


def lead(first: Row | Measurement, second: Row | Measurement, measure_name: str) -> float:
    """Return by how much the first row is better than the second by a measure; below 0 where it is worse."""
    difference = getattr(first, measure_name) - getattr(second, measure_name)
    return -difference if LOWER_IS_BETTER[measure_name] else difference


def largest_spread(measured: Iterable[Measurement], measure_name: str) -> float:
    """Return how far two seeds of one row are apart at most by a measure; 0 where each row has one."""
    return max((getattr(row, f"{measure_name}_spread") or 0.0 for row in measured), default=0.0)


# Title and format of each column, in the two tables that a row is spread over.
ARCHITECTURE = {
    "row": ("row", "{}"),
    "layers": ("N", "{}"),
    "d_model": ("d_model", "{}"),
    "d_ff": ("d_ff", "{}"),
    "heads": ("h", "{}"),
    "d_k": ("d_k", "{}"),
    "d_v": ("d_v", "{}"),
    "positions": ("positions", "{}"),
    "dropout": ("P_drop", "{}"),
    "parameters": ("parameters", "{:,}"),
    "parameters_with_40960_types": ("parameters with 40,960 types", "{:,}"),
    "paper_parameters": ("parameters (paper)", "{:,}"),
}
COST_AND_RESULTS = {
    "row": ("row", "{}"),
    "label_smoothing": ("eps_ls", "{}"),
    "max_steps": ("updates", "{:,}"),
    "flops_per_target_token": ("FLOPs per target token", "{:.2e}"),
    "training_flops": ("training FLOPs", "{:.1e}"),
    "paper_training_flops": ("training FLOPs (paper)", "{:.1e}"),
    "perplexity": ("PPL", "{:.2f}"),
    "perplexity_spread": ("PPL, between seeds", "{:.2f}"),
    "paper_perplexity": ("PPL (paper)", "{:.2f}"),
    "perplexity_minus_base": ("PPL - base", "{:+.2f}"),
    "paper_perplexity_minus_base": ("PPL - base (paper)", "{:+.2f}"),
    "bleu": ("BLEU", "{:.1f}"),
    "bleu_spread": ("BLEU, between seeds", "{:.1f}"),
    "paper_bleu": ("BLEU (paper)", "{:.1f}"),
    "bleu_minus_base": ("BLEU - base", "{:+.1f}"),
    "paper_bleu_minus_base": ("BLEU - base (paper)", "{:+.1f}"),
    "tokens_per_second": ("target tokens/s", "{:,.0f}"),
}


def tables(rows: Sequence[dict[str, Any]], layout: Callable[[Sequence[str], Iterable[Sequence[str]]], str]) -> str:
    """Write rows as two tables under each other: what the models are, and what training them costs and gives.

    Parameters
    ----------
    rows : sequence of dict
        The fields of `Description`, and of `Measurement` and `Differences` where there are any.
    layout : callable
        Makes a table of titles and cells, such as `layout.align`. Columns that are empty in all rows are left out.
    """
    texts = []
    for columns in (ARCHITECTURE, COST_AND_RESULTS):
        shown = {name: column for name, column in columns.items() if any(row.get(name) is not None for row in rows)}
        cells = [
            ["" if row.get(name) is None else form.format(row[name]) for name, (_, form) in shown.items()]
            for row in rows
        ]
        texts.append(layout([title for title, _ in shown.values()], cells))
    return "\n\n".join(texts)


def write_report(described: Sequence[Description], runs: RunsOfRows, folder: Path, command: str) -> None:
    """Write `table3.md`, `.csv` and `.png` from descriptions of the rows and what their finished runs measured."""
    rows = report_rows(described, {name: [run for run in seeds if run.is_finished] for name, seeds in runs.items()})
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(folder / "table3.csv", [row.record() for row in rows])
    (folder / "table3.md").write_text(write_markdown(rows, runs, command), encoding="utf-8")
    draw(rows, folder / "table3.png")


def write_markdown(rows: Sequence[ReportRow], runs: RunsOfRows, command: str) -> str:
    """Write the Markdown: what was run, the tables, the orderings."""
    measured = {row.name: row.measurement for row in rows if row.measurement is not None}
    planned = [run for seeds in runs.values() for run in seeds]
    finished = [run for run in planned if run.is_finished]
    what = "rows" if len(planned) == len(rows) else "runs"
    parts = ["# Table 3", f"`{command}`", f"{len(finished)} of {len(planned)} {what} are finished."]
    if finished:
        parts += describe_conditions(finished, next(iter(measured.values())))
    parts.append(tables([row.record() for row in rows], markdown))
    orderings = compare_orderings(measured)
    if orderings:
        parts += write_orderings(orderings, measured)
    return "\n\n".join(parts) + "\n"


def write_orderings(orderings: Sequence[Ordering], measured: Mapping[str, Measurement]) -> list[str]:
    """Write which of the paper's orderings hold: beyond luck, where rows have several seeds."""
    luck = {name: largest_spread(measured.values(), name) for name in LOWER_IS_BETTER}
    cells = []
    for ordering in orderings:
        lists = [ordering.agreeing, ordering.undecided, ordering.disagreeing]
        share = f"{len(ordering.agreeing)} of {sum(map(len, lists))}"
        shown = lists if any(luck.values()) else lists[-1:]
        cells.append([ordering.series, NAMES_OF_MEASURES[ordering.measure], share, *map(", ".join, shown)])
    titles = ["series", "by", "pairs ordered as in the paper"]
    if not any(luck.values()):
        return [markdown([*titles, "paper's order, not here"], cells)]
    return [
        f"Seeds of one row are up to {luck['perplexity']:.2f} in perplexity and {luck['bleu']:.1f} BLEU apart. Rows "
        "that are no further apart may be so by luck. Pairs are in the paper's order.",
        markdown([*titles, "these", "may be luck", "the other way here"], cells),
    ]


def describe_conditions(finished: Sequence[Run], measurement: Measurement) -> list[str]:
    """Say in two paragraphs under which conditions a row was trained and measured: those of all rows."""
    run, settings = finished[0], finished[0].settings
    seeds = sorted({each.settings.optimization.seed for each in finished})
    types, these = count_types(settings.model), "seed" if len(seeds) == 1 else "seeds"
    return [
        f"Data: {run.text_name}, {settings.data.source_lang} to {settings.data.target_lang}; validation of "
        f"{measurement.sentences:,} sentences. About {settings.optimization.max_tokens_per_batch:,} target tokens an "
        f"update, vocabulary {types:,}, {these} {', '.join(map(str, seeds))}. Each run had {run.where_and_when}.",
        "PPL is the perplexity of a word piece, teacher-forced, unsmoothed; BLEU is "
        f"`{measurement.bleu_signature}`, {measurement.decoding}, no checkpoints averaged. The paper's figures are "
        "for newstest2013. Target tokens/s are those of training, while as many runs as the command says shared the "
        "machine." + (" PPL and BLEU are means over seeds." if len(seeds) > 1 else ""),
    ]


@matplotlib.rc_context(MATPLOTLIB | {"axes.grid.axis": "x"})
def draw(rows: Sequence[ReportRow], path: Path) -> None:
    """Draw how far each finished row is from base, beside the paper's difference."""
    shown = [row for row in rows if row.differences.perplexity_minus_base is not None and row.name != "base"]
    figure = Figure(figsize=(10, 1.5 + 0.35 * len(shown)), layout="constrained")
    for axes, (measure_name, title) in zip(figure.subplots(1, 2, sharey=True), NAMES_OF_MEASURES.items(), strict=True):
        places = range(len(shown))
        for offset, prefix, label in ((-0.2, "paper_", "paper"), (0.2, "", "here")):
            values = [getattr(row.differences, f"{prefix}{measure_name}_minus_base") for row in shown]
            axes.barh([place + offset for place in places], values, height=0.36, label=label, **BARS[label])
        axes.axvline(0, color=LIGHT["ink"], linewidth=0.8)
        axes.set_yticks(list(places), [row.name for row in shown])
        better = "lower" if LOWER_IS_BETTER[measure_name] else "higher"
        axes.set_xlabel(f"{title}, difference to base ({better} is better)")
    figure.axes[0].invert_yaxis()
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    figure.savefig(path, dpi=150)
