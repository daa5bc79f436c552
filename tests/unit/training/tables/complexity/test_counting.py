import math

import pytest
import torch
from torch import nn

from training.tables.complexity.counting import _count_flops, count_flops, count_hops, count_sequential, on_paper
from training.tables.complexity.fits import exponent
from training.tables.complexity.layers import Layer
from training.tables.complexity.rows import ROWS, Row, Size


# Operations of one sequence, forward, by hand: 2 for a multiplication and addition.
BY_HAND = {
    "self-attention": lambda n, d, k, r: 4 * n**2 * d,
    "projected": lambda n, d, k, r: 4 * n**2 * d + 8 * n * d**2,
    "restricted": lambda n, d, k, r: 4 * n * (2 * r - 1) * d,  # blocks of r queries see 2 r - 1 keys
    "blocks": lambda n, d, k, r: 4 * r * n * d,
    "recurrent": lambda n, d, k, r: 4 * n * d**2,
    "lstm": lambda n, d, k, r: 16 * n * d**2,
    "convolution": lambda n, d, k, r: 2 * k * n * d**2,
    "dilated": lambda n, d, k, r: 2 * k * n * d**2,
    "separable": lambda n, d, k, r: 2 * k * n * d + 2 * n * d**2,
}
# The zeros that a recurrence begins with need no gradient.
SAVED_BACKWARD = {"recurrent": lambda d: 2 * d**2, "lstm": lambda d: 8 * d**2}
# The paper's complexities, where they are one product.
EXPONENTS = {
    "self-attention": {"n": 2, "d": 1},
    "restricted": {"n": 1, "d": 1, "r": 1},
    "blocks": {"n": 1, "d": 1, "r": 1},
    "recurrent": {"n": 1, "d": 2},
    "lstm": {"n": 1, "d": 2},
    "convolution": {"n": 1, "d": 2, "k": 1},
    "dilated": {"n": 1, "d": 2, "k": 1},
}
GRID = {"n": (128, 256, 512), "d": (8, 16, 32), "k": (3, 5, 9), "r": (32, 64, 128)}


class Shift(Layer):
    """Moves everything one position to the right: one operation, one position a hop."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.pad(x, (0, 0, 1, -1))


class Double(Layer):
    """Connects no position with another."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


class RunningSum(Layer):
    """Adds up position by position: n - 1 additions that wait for each other, and a concatenation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sums = [x[:, 0]]
        for position in range(1, x.shape[1]):
            sums.append(sums[-1] + x[:, position])
        return torch.stack(sums, dim=1)


def control(layer: type[Layer]) -> Row:
    return Row("control", "", "nd", lambda _: layer(), "", "", "")


@pytest.mark.parametrize("name", ROWS)
def test_operations_are_those_of_the_arithmetic(name):
    for n, d, k, r in ((64, 8, 3, 32), (128, 12, 5, 64)):
        forward, both = count_flops(ROWS[name], ROWS[name].size(n, d, k, r))
        assert forward == BY_HAND[name](n, d, k, r)
        assert both == 3 * forward - SAVED_BACKWARD.get(name, lambda d: 0)(d)


@pytest.mark.parametrize("name", ["recurrent", "lstm"])
def test_long_recurrences_are_reckoned_as_if_they_had_been_counted(name):
    size = Size(21, 4)
    assert count_flops(ROWS[name], size) == _count_flops(*on_paper(ROWS[name], size))


@pytest.mark.parametrize("name", EXPONENTS)
def test_counted_operations_grow_as_the_paper_says(name):
    row = ROWS[name]
    for axis, expected in EXPONENTS[name].items():
        sizes = {value: row.size(**({"n": 256, "d": 16, "k": 5, "r": 64} | {axis: value})) for value in GRID[axis]}
        fitted = exponent([(value, count_flops(row, size)[0]) for value, size in sizes.items()])
        # Blocks of r queries see 2 r - 1 keys, which grow a little faster than r.
        assert fitted == pytest.approx(expected, abs=0.01 if (name, axis) == ("restricted", "r") else 1e-9)


def test_the_exponents_of_two_layers_can_be_told_apart():
    projected = [(n, count_flops(ROWS["projected"], Size(n, 64))[0]) for n in GRID["n"]]
    assert 1.5 < exponent(projected) < 1.99


@pytest.mark.parametrize(
    ("name", "a_step", "once"),
    [
        ("self-attention", 0, 4),  # Q K^T, scaling, softmax, weights times V
        ("projected", 0, 6),  # and a projection before and after
        ("restricted", 0, 6),
        ("blocks", 0, 5),  # and a concatenation
        ("recurrent", 3, 1),  # product, sum, tanh; at the end all states side by side
        ("lstm", 7, 1),
        ("convolution", 0, 1),
        ("dilated", 0, 1),
        ("separable", 0, 3),  # convolution, product, bias
    ],
)
def test_the_longest_chain_grows_with_n_in_recurrences_alone(name, a_step, once):
    for n in (8, 13, 24):
        assert count_sequential(ROWS[name], ROWS[name].size(n, 4, 3, 4)) == a_step * n + once


def test_a_chain_in_plain_sight_is_counted():
    for n in (2, 9):
        assert count_sequential(control(RunningSum), Size(n, 4)) == n
    assert count_sequential(control(Shift), Size(9, 4)) == 1


def reach(k: int) -> int:
    return (k - 1) // 2


@pytest.mark.parametrize("n", [2, 3, 8, 17])
@pytest.mark.parametrize(("k", "r"), [(3, 3), (5, 8)])
def test_hops_are_as_many_as_they_must_be(n, k, r):
    expected = {
        "self-attention": 1,
        "projected": 1,
        "restricted": math.ceil((n - 1) / (r // 2)),
        "blocks": 1 if n <= r else math.inf,
        "recurrent": n,
        "lstm": n,
        "convolution": math.ceil((n - 1) / reach(k)),
        "dilated": next(layers for layers in range(1, 9) if (k**layers - 1) // 2 >= n - 1),  # ceil(log_k(2 n - 1))
        "separable": math.ceil((n - 1) / reach(k)),
    }
    assert {name: count_hops(row, row.size(n, 4, k, r)) for name, row in ROWS.items()} == expected


def test_blocks_connect_nothing_beyond_them_and_a_neighborhood_of_one_nothing_at_all():
    assert count_hops(ROWS["blocks"], Size(9, 4, r=8)) == math.inf
    assert count_hops(ROWS["restricted"], Size(9, 4, r=8)) == 2
    assert count_hops(ROWS["restricted"], Size(9, 4, r=1)) == math.inf


def test_layers_that_move_a_signal_by_one_position_or_not_at_all():
    assert count_hops(control(Shift), Size(9, 4)) == 8
    assert count_hops(control(RunningSum), Size(9, 4)) == 1
    assert count_hops(control(Double), Size(9, 4)) == math.inf
