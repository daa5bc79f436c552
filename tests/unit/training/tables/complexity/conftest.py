from collections.abc import Iterator

import pytest
import torch

from training.tables.complexity import clock, measuring
from training.tables.complexity.measuring import Grid, Record, measure_all
from training.tables.complexity.rows import ROWS


@pytest.fixture(scope="package")
def grid() -> Grid:
    """All layers at sizes that take no time."""
    return Grid(list(ROWS.values()), (32, 64, 128), (8, 16), (3, 5), (16, 32), 2, torch.device("cpu"))


@pytest.fixture(scope="package")
def records(grid: Grid) -> Iterator[list[Record]]:
    """What is measured of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "SECONDS", 0.0)
        patch.setattr(clock, "FEWEST", 1)
        patch.setattr(measuring, "KEY_WIDTHS", (4, 64))
        patch.setattr(measuring, "COUNTED", measuring.COUNTED | {"n": (4, 8, 16)})
        yield measure_all(grid)
