"""Table 1 as it was measured, beside the paper's: as Markdown and CSV."""

import math
from collections.abc import Sequence
from pathlib import Path

from training.tables.complexity.fits import crossing, exponents, logarithmic_line, series, straight_line
from training.tables.complexity.measuring import COUNTED, UNITS, Grid, Record, counted_base
from training.tables.complexity.picture import draw
from training.tables.complexity.rows import ROWS, Row, Size
from training.tables.complexity.softmax import KEYS, QUERIES, SCORES
from training.tables.layout import markdown, write_csv


# Whose cost is compared with whose: the one that grows with n^2 first.
PAIRS = (
    ("self-attention", "recurrent"),
    ("self-attention", "lstm"),
    ("projected", "recurrent"),
    ("projected", "lstm"),
)

COMPLEXITY_NOTE = (
    "FLOPs are those that PyTorch counts in the forward pass: matrix products and convolutions, 2 for a "
    "multiplication and addition, without softmax and tanh; long recurrences are reckoned from 4 and 8 steps, "
    "as all steps cost the same. Exponents are slopes of least-squares lines through logarithms; one of n, d, "
    "k, r is varied at a time. All self-attention has one head; except in the row with projections, "
    "queries, keys and values are the input itself, which is what the paper counts. Restricted self-attention is the "
    "model's own: it computes 2 r - 1 scores for each position, and hides those of no neighbor. A sequential "
    "operation is one of PyTorch's, in the longest chain of its autograd graph. A hop is a layer, in a "
    "recurrent layer a step in time: they are added until the gradient of the last output by the first input "
    "is not zero (∞: no further hop brings anything nearer). So these are ceil((n - 1) / floor(r / 2)), "
    "ceil((n - 1) / ((k - 1) / 2)) and, dilated by 1, k, k², ..., ceil(log_k(2 n - 1)) layers. Elman's "
    "recurrence is h_t = tanh(W x_t + U h_(t-1) + b). What has a star is not in the paper, but follows."
)
COST_NOTE = (
    "ms are medians, after a first run. MB is the most that tensors held at once beyond weights and input: "
    "{memory}. Forward is without gradients, as in translation; f+b is forward and backward, with gradients of "
    "weights and input. The exponents are those of f+b."
)
CROSSING_NOTE = (
    'Section 4: "self-attention layers are faster than recurrent layers when the sequence length n is smaller '
    'than the representation dimensionality d". Shown is the n from which on the first layer is dearer than '
    "the second."
)
SOFTMAX_NOTE = (
    "Section 3.2.1: scores of {keys} random keys for each of {queries} queries, whose components have mean 0 "
    "and variance 1. Entropy is that of the softmax, in nats, the mean over queries; {most:.2f} if all keys "
    "weigh the same. The gradient is the Frobenius norm of the softmax's Jacobian: for the median query it "
    "vanishes, while a few queries whose two best keys tie keep the mean up. Additive is v . tanh(W q + U k) "
    "with d_k hidden units, weights at Glorot's uniform beginning."
)


def write_report(records: Sequence[Record], grid: Grid, conditions: str, folder: Path) -> str:
    """Write `table1.md`, `.csv`, `.png` and `.svg`; return the Markdown.

    Parameters
    ----------
    records : sequence of Record
    grid : Grid
    conditions : str
        Command and machine, in Markdown.
    folder : Path
        One that exists.
    """
    text = write_markdown(records, grid, conditions)
    (folder / "table1.md").write_text(text, encoding="utf-8")
    rows = [
        {"quantity": record.quantity, "unit": UNITS[record.quantity], "layer": record.layer}
        | {**vars(record.size), "value": record.value}
        for record in records
    ]
    write_csv(folder / "table1.csv", rows)
    draw(records, grid, [folder / "table1.png", folder / "table1.svg"])
    return text


def write_markdown(records: Sequence[Record], grid: Grid, conditions: str) -> str:
    """Write the Markdown: under which conditions, then four tables, each with how it was measured."""
    memory = "what PyTorch's allocator says" if grid.device.type == "cuda" else "what its operations return, counted"
    parts = [
        "# Table 1",
        conditions,
        "## Complexity, sequential operations, path length",
        complexity_table(records, grid),
        COMPLEXITY_NOTE,
        "## Cost",
        cost_table(records, grid),
        COST_NOTE.format(memory=memory),
    ]
    crossings = crossing_table(records, grid)
    if crossings:
        parts += ["## Where self-attention stops being cheaper", crossings, CROSSING_NOTE]
    note = SOFTMAX_NOTE.format(keys=KEYS, queries=QUERIES, most=math.log(KEYS))
    return "\n\n".join([*parts, "## Why dot products are scaled", softmax_table(records), note]) + "\n"


def complexity_table(records: Sequence[Record], grid: Grid) -> str:
    """Set what was counted beside the paper's three columns."""
    titles = [
        "layer",
        "complexity (paper)",
        "FLOPs here",
        "sequential operations (paper)",
        "here",
        "maximum path length (paper)",
        f"hops here, n = {', '.join(map(str, COUNTED['n']))}",
        "that is",
    ]
    rows = []
    for row in grid.rows:
        chain = series(records, "sequential_operations", row.name, "n", counted_base(row))
        hops = series(records, "path_length", row.name, "n", counted_base(row))
        flops = power_law(exponents(records, "forward_flops", row, grid.base(row)))
        cells = [row.title, row.complexity, flops, row.sequential, line(chain)]
        rows.append(
            [*cells, row.path, ", ".join(f"{value:g}".replace("inf", "∞") for _, value in hops), path(records, row)]
        )
    return markdown(titles, rows)


def power_law(fitted: dict[str, float]) -> str:
    """Write exponents, such as "n^2.00 d^1.00"; zero is written without a sign."""
    return " ".join(f"{axis}^{round(value, 2) + 0.0:.2f}" for axis, value in fitted.items())


def line(points: Sequence[tuple[int, float]]) -> str:
    """Write how a count depends on n: "4", "3 n + 1", or the counts themselves where they are on no line."""
    law = straight_line(points)
    if law is None:
        return ", ".join(f"{value:g}" for _, value in points)
    slope, intercept = law
    return f"{slope:g} n + {intercept:g}" if slope else f"{intercept:g}"


def path(records: Sequence[Record], row: Row) -> str:
    """Write how the path grows: as a power law, or with the logarithm of n."""
    base = counted_base(row)
    points = series(records, "path_length", row.name, "n", base)
    if row.is_logarithmic:
        slope, intercept = logarithmic_line(points, base.k)
        return f"{slope:.2f} log_k n {'-' if intercept < 0 else '+'} {abs(intercept):.2f}"
    if any(value == math.inf for _, value in points):
        return "never beyond r"
    fitted = exponents(records, "path_length", row, base)
    return power_law({axis: value for axis, value in fitted.items() if axis != "d"})


def cost_table(records: Sequence[Record], grid: Grid) -> str:
    """Show what a layer costs at its base size, and with which exponents time and memory grow."""
    titles = ["layer", "size", "GFLOP", "ms", "MB", "GFLOP f+b", "ms f+b", "MB f+b", "ms grow as", "MB grow as"]
    rows = []
    for row in grid.rows:
        base = grid.base(row)
        figures = [
            digits(find(records, f"{passes}_{quantity}", row.name, base) * factor)
            for passes in ("forward", "forward_backward")
            for quantity, factor in (("flops", 1e-9), ("seconds", 1e3), ("bytes", 1e-6))
        ]
        laws = [
            power_law(exponents(records, f"forward_backward_{quantity}", row, base))
            for quantity in ("seconds", "bytes")
        ]
        size = ", ".join(f"{axis} {getattr(base, axis)}" for axis in row.axes)
        rows.append([row.title, size, *figures, *laws])
    return markdown(titles, rows)


def digits(value: float) -> str:
    """Write a number with three digits, or as many as it has before the point."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:#.3g}"


def find(records: Sequence[Record], quantity: str, layer: str, size: Size) -> float:
    """Return one figure."""
    return next(
        record.value for record in records if (record.quantity, record.layer, record.size) == (quantity, layer, size)
    )


def crossing_table(records: Sequence[Record], grid: Grid) -> str:
    """Show for each width from which n on one layer is dearer than another; empty if no pair was measured."""
    measured = {row.name for row in grid.rows}
    quantities = ("forward_flops", "forward_seconds", "forward_backward_seconds")
    rows = []
    for pair in PAIRS:
        for d in grid.widths if measured.issuperset(pair) else ():
            costs = [
                [series(records, quantity, name, "n", Size(grid.lengths[0], d)) for name in pair]
                for quantity in quantities
            ]
            first, second = (ROWS[name].title for name in pair)
            rows.append([f"{first} / {second}", str(d), *(place(crossing(*cost), grid.lengths) for cost in costs)])
    return markdown(["layers", "d", "n by FLOPs", "n by time", "n by time f+b"], rows) if rows else ""


def place(n: float, lengths: Sequence[int]) -> str:
    """Write where two costs cross, within the lengths that were measured or beyond."""
    if n == 0:
        return f"< {lengths[0]:,}"
    return f"> {lengths[-1]:,}" if n == math.inf else f"{n:,.0f}"


def softmax_table(records: Sequence[Record]) -> str:
    """Show what width does to scores and to the softmax over them, by three ways to score."""
    quantities = {
        "score_variance": "variance, {}",
        "softmax_entropy": "entropy, {}",
        "softmax_gradient_median": "gradient (median), {}",
        "softmax_gradient_mean": "gradient (mean), {}",
    }
    titles = [title.format(name) for title in quantities.values() for name in SCORES]
    columns = [series(records, quantity, name, "d", Size(KEYS, 1)) for quantity in quantities for name in SCORES]
    rows = [[str(points[0][0]), *(digits(value) for _, value in points)] for points in zip(*columns, strict=True)]
    return markdown(["d_k", *titles], rows)
