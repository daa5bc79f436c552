"""What follows from the records: exponents, straight lines, and where one layer becomes dearer than another."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from training.tables.complexity.measuring import Record
from training.tables.complexity.rows import Row, Size


def series(records: Sequence[Record], quantity: str, layer: str, axis: str, base: Size) -> list[tuple[int, float]]:
    """Return a quantity of a layer over n, d, k or r, in ascending order, while all else is as in `base`."""
    points = {
        getattr(record.size, axis): record.value
        for record in records
        if (record.quantity, record.layer) == (quantity, layer)
        and replace(record.size, **{axis: None}) == replace(base, **{axis: None})
    }
    return sorted(points.items())


def exponent(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the slope of a least-squares line through logarithms: e of a power law y = c x^e.

    None where fewer than two points are finite.
    """
    finite = [(math.log(x), math.log(y)) for x, y in points if 0 < y < math.inf]
    if len(finite) < 2:
        return None
    return statistics.linear_regression(*zip(*finite, strict=True)).slope


def exponents(records: Sequence[Record], quantity: str, row: Row, base: Size) -> dict[str, float]:
    """Return the exponent of a quantity in each letter that the layer depends on, where it can be fitted."""
    fitted = {axis: exponent(series(records, quantity, row.name, axis, base)) for axis in row.axes}
    return {axis: value for axis, value in fitted.items() if value is not None}


def logarithmic_line(points: Sequence[tuple[int, float]], base: int) -> tuple[float, float]:
    """Return a and b of the least-squares line y = a log_base(n) + b."""
    line = statistics.linear_regression([math.log(n, base) for n, _ in points], [y for _, y in points])
    return line.slope, line.intercept


def straight_line(points: Sequence[tuple[int, float]]) -> tuple[float, float] | None:
    """Return a and b if all points lie exactly on y = a n + b, with a and b whole numbers; else None."""
    (first, low), (last, high) = points[0], points[-1]
    slope = (high - low) / (last - first)
    intercept = low - slope * first
    on_it = all(y == slope * n + intercept for n, y in points)
    return (slope, intercept) if on_it and slope.is_integer() else None


def crossing(cheaper: Sequence[tuple[int, float]], dearer: Sequence[tuple[int, float]]) -> float | None:
    """Return the n from which on the first layer, whose cost grows faster, is the dearer one.

    Between two measured lengths, costs are taken to be power laws. If they cross more than once, the last time counts.

    Parameters
    ----------
    cheaper, dearer : sequence of (int, float)
        Costs over n, of the one that is cheaper for short sequences and of the other.

    Returns
    -------
    float or None
        0 if the first is dearer everywhere, infinity if it is still cheaper at the greatest n; None without points.
    """
    other = dict(dearer)
    ratios = [(math.log(n), math.log(cost / other[n])) for n, cost in cheaper if n in other]
    if not ratios:
        return None
    if ratios[-1][1] <= 0:
        return math.inf
    for (n, ratio), (next_n, next_ratio) in zip(ratios[-2::-1], ratios[:0:-1], strict=True):
        if ratio <= 0:
            return math.exp(n + (next_n - n) * -ratio / (next_ratio - ratio))
    return 0.0
