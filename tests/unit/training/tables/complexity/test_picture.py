import dataclasses
import xml.etree.ElementTree as ElementTree

import pytest
from matplotlib.image import imread

from training.tables.complexity import measuring, picture
from training.tables.complexity.fits import series
from training.tables.complexity.picture import PANELS, STYLES, draw, sizes
from training.tables.complexity.rows import ROWS, Size
from training.tables.complexity.softmax import KEYS, SCORES


@pytest.fixture(autouse=True)
def counted_as_in_the_records(monkeypatch):
    monkeypatch.setattr(measuring, "COUNTED", measuring.COUNTED | {"n": (4, 8, 16)})


def test_every_line_has_a_style_of_its_own():
    assert set(STYLES) == {*ROWS, *SCORES}
    for names in (ROWS, SCORES):
        assert len({STYLES[name] for name in names}) == len(names)
        assert len({STYLES[name][2] for name in names}) == len(names)  # told apart in black and white too


def test_the_picture_shows_what_was_measured_and_says_what_it_is(grid, records, tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(
        picture,
        "plot",
        lambda axes, name, points, label, plot=picture.plot: (
            drawn.setdefault((axes.get_subplotspec().num1, name), points),
            plot(axes, name, points, label),
        ),
    )
    draw(records, grid, [tmp_path / "a.png", tmp_path / "a.svg"])
    assert len(drawn) == len(PANELS) * len(ROWS) + len(SCORES)
    assert drawn[3, "recurrent"] == [(4, 13.0), (8, 25.0), (16, 49.0)]
    assert drawn[0, "self-attention"] == [(n, pytest.approx(2 * 4 * n**2 * 16 / 1e9)) for n in grid.lengths]
    for number, quantity, factor in ((1, "seconds", 1e3), (2, "bytes", 1e-6)):
        values = dict(series(records, f"forward_backward_{quantity}", "lstm", "n", grid.base(ROWS["lstm"])))
        assert drawn[number, "lstm"] == [(n, pytest.approx(value * factor)) for n, value in values.items()]
    assert drawn[5, "additive"] == series(records, "softmax_gradient_median", "additive", "d", Size(KEYS, 1))
    assert imread(tmp_path / "a.png").shape[1] > 1000
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")


def test_a_panel_says_what_is_held_fixed(grid):
    assert sizes(grid.rows, grid, PANELS[0]) == "d = 16, k = 5, r = 32"
    assert sizes(grid.rows, grid, PANELS[-1]) == "k = 5, r = 8; in blocks ∞ beyond r"
    few = dataclasses.replace(grid, rows=[ROWS["recurrent"]])
    assert sizes(few.rows, few, PANELS[0]) == "d = 16"
    assert sizes(few.rows, few, PANELS[-1]) == ""
