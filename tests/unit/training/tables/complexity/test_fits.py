import math

import pytest

from training.tables.complexity.fits import crossing, exponent, exponents, logarithmic_line, series, straight_line
from training.tables.complexity.measuring import Record
from training.tables.complexity.rows import ROWS, Size


def test_a_series_varies_one_number_and_leaves_the_others_at_the_base():
    records = [
        Record("forward_flops", "dilated", size, value)
        for size, value in (
            (Size(8, 4, k=3), 1.0),
            (Size(4, 4, k=3), 2.0),
            (Size(8, 4, k=5), 3.0),
            (Size(16, 2, k=3), 4.0),
        )
    ]
    records += [Record("forward_bytes", "dilated", Size(8, 4, k=3), 5.0)]
    records += [Record("forward_flops", "blocks", Size(8, 4, r=3), 6.0)]
    assert series(records, "forward_flops", "dilated", "n", Size(8, 4, k=3)) == [(4, 2.0), (8, 1.0)]
    assert series(records, "forward_flops", "dilated", "k", Size(8, 4, k=9)) == [(3, 1.0), (5, 3.0)]
    assert series(records, "forward_flops", "recurrent", "n", Size(8, 4)) == []
    fitted = exponents(records, "forward_flops", ROWS["dilated"], Size(8, 4, k=3))
    assert fitted == {"n": pytest.approx(-1), "k": pytest.approx(math.log(3) / math.log(5 / 3))}


@pytest.mark.parametrize("power", [-1, 0, 1, 2, 2.5])
def test_the_exponent_of_a_power_law_is_found_whatever_its_factor(power):
    assert exponent([(x, 7 * x**power) for x in (2, 3, 50)]) == pytest.approx(power)


def test_the_exponent_of_a_sum_lies_between():
    assert 1 < exponent([(x, x + x**2) for x in (1, 2, 4)]) < 2


def test_without_two_finite_points_there_is_no_exponent():
    assert exponent([]) is None
    assert exponent([(2, 3.0), (4, math.inf), (8, 0.0)]) is None
    assert exponent([(2, 3.0), (3, math.inf), (4, 6.0)]) == pytest.approx(1)


def test_a_logarithm_is_found():
    assert logarithmic_line([(n, 2 * math.log(n, 3) + 1) for n in (4, 9, 40)], 3) == pytest.approx((2, 1))


@pytest.mark.parametrize(
    ("points", "line"),
    [
        ([(4, 13.0), (8, 25.0), (16, 49.0)], (3, 1)),
        ([(4, 5.0), (8, 5.0)], (0, 5)),
        ([(4, 13.0), (8, 26.0), (16, 49.0)], None),
        ([(4, 1.0), (8, 2.0), (12, 3.0)], None),
    ],
)
def test_a_line_is_one_only_if_all_points_are_on_it(points, line):
    assert straight_line(points) == line


def test_power_laws_cross_where_they_are_equal():
    lengths = (64, 128, 512, 1024)
    squared = [(n, 4.0 * n * n * 200) for n in lengths]
    linear = [(n, 4.0 * n * 200 * 200) for n in lengths]
    assert crossing(squared, linear) == pytest.approx(200)
    assert crossing(linear, squared) == math.inf
    assert crossing(squared, [(n, cost / 1000) for n, cost in linear]) == 0
    assert crossing(squared[-1:], linear[-1:]) == 0
    assert crossing(squared[:1], linear[:1]) == math.inf


def test_a_crossing_at_a_measured_length_is_that_length():
    assert crossing([(64, 5.0), (128, 20.0)], [(64, 5.0), (128, 10.0)]) == pytest.approx(64)


def test_the_last_of_several_crossings_counts():
    ones = [(n, 1.0) for n in (1, 2, 4, 8, 16)]
    assert 4 < crossing([(1, 0.5), (2, 2.0), (4, 0.5), (8, 2.0), (16, 3.0)], ones) < 8


def test_lengths_that_only_one_was_measured_at_do_not_count():
    assert crossing([(2, 1.0), (4, 4.0)], [(4, 2.0)]) == 0
    assert crossing([(2, 1.0)], [(4, 2.0)]) is None
