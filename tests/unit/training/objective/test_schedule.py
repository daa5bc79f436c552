"""Equation 3 at its corners, and between them."""

import pytest

from training.objective.schedule import learning_rate


@pytest.mark.parametrize(("d_model", "warmup"), [(512, 4000), (1024, 4000), (256, 1)])
def test_equation_3_at_its_corners(d_model, warmup):
    peak = (d_model * warmup) ** -0.5
    assert learning_rate(1, d_model, warmup) == pytest.approx(peak / warmup)
    assert learning_rate(warmup, d_model, warmup) == pytest.approx(peak)
    assert learning_rate(warmup + 1, d_model, warmup) == pytest.approx(peak * (warmup / (warmup + 1)) ** 0.5)


def test_the_rate_rises_by_equal_steps_and_falls_with_the_root_of_the_step():
    first = learning_rate(1, 512, 4000)
    assert [learning_rate(step, 512, 4000) / first for step in (2, 1000, 4000)] == pytest.approx([2, 1000, 4000])
    assert learning_rate(16_000, 512, 4000) == pytest.approx(learning_rate(4000, 512, 4000) / 2)
    assert learning_rate(4000, 512, 4000) == pytest.approx(6.9877e-4, rel=1e-4)  # the paper's base model
