import dataclasses

import pytest
import torch

from training.tables.complexity import measuring
from training.tables.complexity.counting import count_flops
from training.tables.complexity.measuring import COMPARED, UNITS, Grid, measure_all, plan, vary
from training.tables.complexity.rows import ROWS, Size
from training.tables.complexity.softmax import SCORES
from vaswani.errors import UserError


def test_the_base_is_the_middle_of_every_list(grid):
    assert grid.base(ROWS["self-attention"]) == Size(64, 16)
    assert grid.base(ROWS["dilated"]) == Size(64, 16, k=5)
    assert grid.base(ROWS["blocks"]) == Size(64, 16, r=32)


def test_one_number_is_varied_at_a_time(grid):
    sizes = vary(ROWS["restricted"], Size(64, 16, r=32), grid.axes())
    assert sizes == [
        Size(64, 16, r=32),
        Size(32, 16, r=32),
        Size(128, 16, r=32),
        Size(64, 8, r=32),
        Size(64, 16, r=16),
    ]
    assert grid.sizes(ROWS["restricted"]) == sizes


def test_layers_that_are_compared_are_measured_at_every_length_and_width(grid):
    for name in COMPARED:
        assert sorted(map(dataclasses.astuple, grid.sizes(ROWS[name])), key=str) == sorted(
            ((n, d, None, None) for n in grid.lengths for d in grid.widths), key=str
        )


def test_all_that_is_planned_is_measured_once(grid, records):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "KEY_WIDTHS", (4, 64))
        patch.setattr(measuring, "COUNTED", measuring.COUNTED | {"n": (4, 8, 16)})
        steps = list(plan(grid))
    measured = [(record.quantity, record.layer, record.size) for record in records]
    assert len(set(measured)) == len(measured)
    assert {(layer, size) for layer, size, _ in steps} == {(layer, size) for _, layer, size in measured}
    assert {record.quantity for record in records} == set(UNITS)
    assert {record.layer for record in records} == {*ROWS, *SCORES}
    assert all(record.value > 0 for record in records)


def test_operations_are_those_of_the_batch(grid, records):
    size = Size(64, 16)
    (flops,) = [
        record.value
        for record in records
        if (record.quantity, record.layer, record.size) == ("forward_flops", "lstm", size)
    ]
    assert flops == grid.batch * count_flops(ROWS["lstm"], size)[0]


def test_gradients_take_more_memory(grid, records):
    for row in grid.rows:
        found = {r.quantity: r.value for r in records if (r.layer, r.size) == (row.name, grid.base(row))}
        assert found["forward_bytes"] < found["forward_backward_bytes"]


@pytest.fixture
def one_layer() -> Grid:
    return Grid([ROWS["self-attention"]], (8,), (4,), (3,), (2,), 1, torch.device("cpu"))


def test_what_does_not_fit_into_memory_is_named(one_layer, monkeypatch):
    def fail(*arguments: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(measuring, "measure_cost", fail)
    with pytest.raises(UserError, match=r"^self-attention at n=8, d=4 does not fit into memory: leave out what"):
        measure_all(one_layer)


def test_other_errors_are_not_hidden(one_layer, monkeypatch):
    def fail(*arguments: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(measuring, "measure_cost", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        measure_all(one_layer)


def test_the_progress_bar_says_what_is_measured(one_layer, monkeypatch, capfd):
    monkeypatch.setattr(measuring, "KEY_WIDTHS", (4,))
    measure_all(one_layer)
    said = capfd.readouterr().err
    assert "self-attention, n=8, d=4" in said
    assert "100%" in said
