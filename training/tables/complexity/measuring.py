"""All that Table 1 needs, measured one after another with a progress bar, as records."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from tqdm.auto import tqdm

from training.tables.complexity.clock import Bench
from training.tables.complexity.counting import count_flops, count_hops, count_sequential
from training.tables.complexity.rows import Row, Size
from training.tables.complexity.softmax import KEYS, SCORES, measure_saturation
from vaswani.errors import UserError


UNITS = {
    "forward_flops": "FLOP",
    "forward_backward_flops": "FLOP",
    "forward_seconds": "s",
    "forward_backward_seconds": "s",
    "forward_bytes": "B",
    "forward_backward_bytes": "B",
    "sequential_operations": "operations",
    "path_length": "hops",
    "score_variance": "",
    "softmax_entropy": "nat",
    "softmax_gradient_mean": "",
    "softmax_gradient_median": "",
}
# Where dependent operations and hops are counted, whatever the machine: small sizes suffice to see how they grow.
COUNTED = {"n": (4, 8, 16, 32, 64), "d": (8,), "k": (3, 5, 9), "r": (4, 8, 16)}
KEY_WIDTHS = (1, 4, 16, 64, 256, 1024)
# Those whose cost is measured at every n and d, to find where one becomes dearer than the other.
COMPARED = ("self-attention", "projected", "recurrent", "lstm")


@dataclass(frozen=True)
class Record:
    """One figure: a quantity (a key of `UNITS`) of a layer, or of a way to score, at a size."""

    quantity: str
    layer: str
    size: Size
    value: float


@dataclass(frozen=True)
class Grid:
    """What is measured, each list in ascending order.

    Where one of n, d, k and r is varied, the others are at their base: the middle of their lists.
    """

    rows: Sequence[Row]
    lengths: Sequence[int]
    widths: Sequence[int]
    kernels: Sequence[int]
    restrictions: Sequence[int]
    batch: int
    device: torch.device

    def axes(self) -> dict[str, Sequence[int]]:
        """Return the lists by their letters."""
        return {"n": self.lengths, "d": self.widths, "k": self.kernels, "r": self.restrictions}

    def base(self, row: Row) -> Size:
        """Return the size at which a layer's cost is shown."""
        n, d, k, r = (values[len(values) // 2] for values in self.axes().values())
        return row.size(n, d, k, r)

    def sizes(self, row: Row) -> list[Size]:
        """Return the sizes at which a layer's cost is measured."""
        sizes = vary(row, self.base(row), self.axes())
        if row.name in COMPARED:
            sizes += [Size(n, d) for n in self.lengths for d in self.widths]
        return list(dict.fromkeys(sizes))


def counted_base(row: Row) -> Size:
    """Return the size at which dependent operations and hops are counted while one of its numbers is varied."""
    return row.size(n=COUNTED["n"][-1], d=COUNTED["d"][0], k=COUNTED["k"][1], r=COUNTED["r"][1])


def vary(row: Row, base: Size, axes: Mapping[str, Sequence[int]]) -> list[Size]:
    """Return a size, and all that differ from it in one number that the layer's cost depends on."""
    varied = (replace(base, **{axis: value}) for axis in row.axes for value in axes[axis])
    return list(dict.fromkeys([base, *varied]))


def measure_all(grid: Grid) -> list[Record]:
    """Measure a grid and show what is measured now.

    Raises
    ------
    UserError
        If a layer does not fit into memory.
    """
    records: list[Record] = []
    steps = list(plan(grid))
    with tqdm(total=len(steps), desc="Table 1", unit="step") as progress:
        for layer, size, measure in steps:
            named = ", ".join(f"{axis}={value}" for axis, value in vars(size).items() if value is not None)
            progress.set_postfix_str(f"{layer}, {named}")
            try:
                figures = measure()
            except RuntimeError as error:
                if "memory" not in str(error):
                    raise
                raise UserError(f"{layer} at {named} does not fit into memory: leave out what is largest") from error
            records += [Record(quantity, layer, size, float(value)) for quantity, value in figures.items()]
            progress.update()
    return records


Step = tuple[str, Size, Callable[[], dict[str, float]]]


def plan(grid: Grid) -> Iterator[Step]:
    """Yield what is to be measured: whose figures, at which size, and how."""
    for row in grid.rows:
        for size in grid.sizes(row):
            yield row.name, size, lambda row=row, size=size: measure_cost(row, size, grid.batch, grid.device)
        for size in vary(row, counted_base(row), COUNTED):
            yield row.name, size, lambda row=row, size=size: count_dependencies(row, size)
    for name in SCORES:
        for width in KEY_WIDTHS:
            yield name, Size(KEYS, width), lambda name=name, width=width: vars(measure_saturation(name, width))


def measure_cost(row: Row, size: Size, batch: int, device: torch.device) -> dict[str, float]:
    """Return operations, times and memory of a batch."""
    forward, both = (batch * flops for flops in count_flops(row, size))
    bench = Bench(row, size, batch, device)
    figures: dict[str, float] = {"forward_flops": forward, "forward_backward_flops": both}
    for name, work in (("forward", bench.forward), ("forward_backward", bench.forward_and_backward)):
        figures[f"{name}_bytes"] = bench.peak_bytes(work)  # the first run, which is not timed
        figures[f"{name}_seconds"] = bench.seconds(work)
    return figures


def count_dependencies(row: Row, size: Size) -> dict[str, float]:
    """Return how many operations wait for one another, and how long the path is."""
    return {"sequential_operations": count_sequential(row, size), "path_length": count_hops(row, size)}
