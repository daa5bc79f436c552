import numpy as np
import pytest

from vaswani.pictures.attention import CROSS, Attention
from vaswani.pictures.attention_figures import MOST_TOKENS, draw_lines, draw_map, save
from vaswani.pictures.look import LIGHT


@pytest.fixture
def attention() -> Attention:
    weights = np.zeros((2, 3, 2, 3))
    weights[..., 0] = 1
    weights[1, 2] = [[0.5, 0.49, 0.01], [0.0, 0.0, 1.0]]
    return Attention(["Ġone", "Ġ$x", "</s>"], ["<start>", "Ġeins"], ["Ġeins", "</s>"], {CROSS: weights})


def test_a_line_goes_from_token_to_token_and_is_as_strong_as_its_weight(attention):
    figure = draw_lines(attention, CROSS, 1, [2])
    [axes] = figure.axes
    drawn = {tuple(line.get_ydata()): (line.get_alpha(), line.get_color()) for line in axes.get_lines()}
    green = LIGHT["green"]
    assert drawn == {(0.0, 0.0): (0.5, green), (0.0, 1.0): (0.49, green), (1.0, 2.0): (1.0, green)}
    assert [text.get_text() for text in axes.texts] == ["eins", "</s>", "one", "$x", "</s>"]
    assert figure.get_suptitle() == "encoder-decoder attention, layer 2, head 3"


def test_each_head_has_its_colour_and_no_two_lines_hide_each_other(attention):
    lines = draw_lines(attention, CROSS, 0, [0, 1, 2]).axes[0].get_lines()
    assert len({line.get_color() for line in lines}) == 3
    assert len({tuple(line.get_ydata()) for line in lines}) == len(lines) == 6


def test_a_figure_has_room_for_the_longer_side(attention):
    [axes] = draw_lines(attention, CROSS, 0, [0]).axes
    assert axes.get_ylim() == (2.5, -0.5)  # three tokens on the right


def test_a_map_has_a_square_for_each_weight(attention):
    attention.weights[CROSS][1] /= 2  # whatever its weights, 1 is the darkest
    first, second = draw_map(attention, CROSS, 1, [0, 2]).axes
    assert np.allclose(second.images[0].get_array(), attention.weights[CROSS][1, 2])
    assert second.images[0].get_clim() == (0, 1)
    assert (first.get_title(), second.get_title()) == ("head 1", "head 3")
    assert [label.get_text() for label in second.get_xticklabels()] == ["one", "$x", "</s>"]
    assert [label.get_text() for label in second.get_yticklabels()] == ["eins", "</s>"]


def test_a_figure_says_what_it_had_no_room_for():
    size = MOST_TOKENS + 3
    long = Attention(["Ġa"] * size, ["<start>"], ["</s>"], {CROSS: np.full((1, 1, 1, size), 1 / size)})
    figure = draw_map(long, CROSS, 0, [0])
    assert figure.get_suptitle().endswith(f"(the first {MOST_TOKENS} of {size} tokens)")
    assert figure.axes[0].images[0].get_array().shape == (1, MOST_TOKENS)


def test_figures_are_saved_as_their_ending_says(attention, tmp_path):
    for ending in ("png", "svg"):
        save(draw_lines(attention, CROSS, 1, [2]), tmp_path / f"lines.{ending}")
    assert (tmp_path / "lines.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "lines.svg").read_text(encoding="utf-8")
    assert svg.startswith("<svg")
    assert "var(--green)" in svg
    assert ">eins</text>" in svg
