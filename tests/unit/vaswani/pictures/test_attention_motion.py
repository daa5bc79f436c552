import re
from xml.etree import ElementTree

import numpy as np
import pytest

from vaswani.pictures.attention import CROSS, Attention
from vaswani.pictures.attention_motion import MOST_WORDS, REST, SECONDS, draw_motion


SVG = "{http://www.w3.org/2000/svg}"


def attention(source: list[str], target: list[str], weights: np.ndarray) -> Attention:
    return Attention(source, ["<start>", *target[:-1]], target, {CROSS: weights})


def test_each_word_comes_after_the_one_before_with_a_line_for_each_weight():
    weights = np.array([[[[0.9, 0.1, 0.0], [0.01, 0.0, 0.99], [0.5, 0.5, 0.0]]]])
    svg = draw_motion(attention(["Ġone", "Ġtwo", "</s>"], ["Ġeins", "Ġzwei", "</s>"], weights))
    drawn = ElementTree.fromstring(svg)
    assert ["".join(text.itertext()) for text in drawn.iter(f"{SVG}text")] == ["one", "two", "⏎", "eins", "zwei"]
    groups = [
        [line.get("opacity") for line in group.iter(f"{SVG}line")]
        for group in drawn.iter(f"{SVG}g")
        if group.get("class").startswith("l")
    ]
    assert groups == [["0.90", "0.10"], ["0.99"]]
    total = 2 * SECONDS + REST
    times = {
        name: [round(total * float(time) / 100, 1) for time in (begin, end)]
        for name, begin, end in re.findall(r"@keyframes (\w\d)\{0%,([\d.]+)%\{.*?%,([\d.]+)%\{opacity:1\}", svg)
    }
    assert times == {"w0": [0, total], "l0": [0, SECONDS], "w1": [SECONDS, total], "l1": [SECONDS, 2 * SECONDS]}
    assert svg.count(f" {total:.1f}s infinite") == 4
    assert "prefers-reduced-motion" in svg


def test_a_line_goes_from_its_word_to_the_one_that_is_looked_at():
    svg = draw_motion(attention(["Ġone", "Ġtwo", "</s>"], ["Ġeins", "</s>"], np.array([[[[0, 1, 0], [0, 0, 1]]]])))
    drawn = ElementTree.fromstring(svg)
    places = {"".join(text.itertext()): text.get("x") for text in drawn.iter(f"{SVG}text")}
    [line] = drawn.iter(f"{SVG}line")
    assert (line.get("x1"), line.get("x2")) == (places["eins"], places["two"])


def test_the_shorter_line_stands_in_the_middle():
    svg = draw_motion(attention(["Ġone", "Ġtwo", "</s>"], ["Ġeins", "</s>"], np.full((1, 1, 2, 3), 1 / 3)))
    drawn = ElementTree.fromstring(svg)
    [eins] = [text for text in drawn.iter(f"{SVG}text") if text.text == "eins"]
    assert float(eins.get("x") or 0) == pytest.approx(float(drawn.get("width") or 0) / 2, abs=1)


def test_words_are_text_and_a_long_sentence_says_that_it_is_cut():
    size = MOST_WORDS + 4
    source = ["Ġ<b>&ć", *["Ġa"] * (size - 2), "</s>"]
    svg = draw_motion(attention(source, ["Ġ<i>", "</s>"], np.full((1, 1, 2, size), 1 / size)))
    drawing = ElementTree.fromstring(svg)
    texts = ["".join(text.itertext()) for text in drawing.iter(f"{SVG}text")]
    assert texts[0] == "<b>&\ufffd"
    assert texts[-1] == f"(the first {MOST_WORDS} of {size} words)"
    assert drawing.get("aria-label") == " ".join(texts[:MOST_WORDS]) + ": <i>"


@pytest.mark.parametrize("size", [MOST_WORDS, MOST_WORDS + 1])
def test_a_translation_that_is_drawn_as_a_whole_is_not_said_to_be_cut(size):
    target = [*["Ġa"] * size, "</s>"]
    svg = draw_motion(attention(["Ġone", "</s>"], target, np.full((1, 1, size + 1, 2), 0.5)))
    assert (f"(the first {MOST_WORDS} of {size} words)" in svg) == (size > MOST_WORDS)
    assert ("words)" in svg) == (size > MOST_WORDS)
