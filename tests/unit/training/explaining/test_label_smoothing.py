import numpy as np
import pytest

from training.explaining.label_smoothing import (
    LABEL,
    PROBABILITIES,
    SMOOTHINGS,
    VOCABULARY,
    draw,
    losses,
    target_distribution,
)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.3])
def test_the_target_has_eps_spread_over_the_other_types(label_smoothing):
    expected = np.full(len(VOCABULARY), label_smoothing / (len(VOCABULARY) - 1))
    expected[LABEL] = 1 - label_smoothing
    target = target_distribution(label_smoothing)
    np.testing.assert_allclose(target, expected, atol=1e-6)
    assert target.sum() == pytest.approx(1)


def test_the_loss_is_least_where_the_label_has_1_minus_eps():
    for label_smoothing in (0.1, 0.3):
        found = losses(PROBABILITIES, label_smoothing)
        assert PROBABILITIES[np.argmin(found)] == pytest.approx(1 - label_smoothing, abs=0.01)
    entropy = -(0.9 * np.log(0.9) + 0.1 * np.log(0.1 / 5))
    assert losses([0.9], 0.1) == pytest.approx([entropy])


def test_the_plain_loss_falls_to_the_end():
    found = losses(PROBABILITIES, 0.0)
    np.testing.assert_allclose(found, -np.log(PROBABILITIES), atol=1e-5)
    assert np.argmin(found) == np.argmax(PROBABILITIES)


def test_the_picture_has_targets_and_losses():
    targets, over = draw().axes
    for bars, label_smoothing in zip(targets.containers, SMOOTHINGS, strict=True):
        assert [bar.get_height() for bar in bars] == target_distribution(label_smoothing).tolist()
    plain, smoothed, least = over.get_lines()
    assert plain.get_ydata().tolist() == losses(PROBABILITIES, 0.0)
    assert smoothed.get_ydata().tolist() == losses(PROBABILITIES, 0.1)
    assert least.get_xdata()[0] == pytest.approx(0.9, abs=0.01)
    assert plain.get_linestyle() != smoothed.get_linestyle()
