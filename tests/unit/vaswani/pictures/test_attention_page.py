"""The attention page as a program reads it; tests/e2e opens it in a browser."""

import base64
import json
import re

import numpy as np
import pytest

from vaswani.pictures.attention import CROSS, ENCODER, Attention, head_facts, join_words
from vaswani.pictures.attention_page import WINDOW, attention_page


@pytest.fixture
def attention() -> Attention:
    draw = np.random.default_rng(1).dirichlet
    source, target = ["Ġun", "do", "Ġ", "</s>"], ["Ġfort", "</s>"]
    weights = {ENCODER: draw(np.ones(4), size=(2, 3, 4)), CROSS: draw(np.ones(4), size=(2, 3, 2))}
    return Attention(source, ["<start>", "Ġfort"], target, weights)


def data_of(page: str) -> dict:
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)[1])


def test_its_data_are_all_weights_of_pieces_and_of_words(attention):
    data = data_of(attention_page(attention, "x"))
    assert data["sizes"] == {ENCODER: [2, 3], CROSS: [2, 3]}
    for unit, found in (("pieces", attention), ("words", join_words(attention))):
        for kind, weights in found.weights.items():
            packed = base64.b64decode(data["units"][unit]["weights"][kind])
            read = np.frombuffer(packed, dtype=np.uint8).reshape(weights.shape) / 255
            assert np.abs(read - weights).max() <= 0.5 / 255 + 1e-9
    assert data["units"]["pieces"]["labels"][CROSS] == [["fort", "</s>"], ["un", "do", "␣", "</s>"]]
    assert data["units"]["words"]["labels"][CROSS] == [["fort", "</s>"], ["undo", "␣", "</s>"]]


def test_a_row_says_what_each_head_does(attention):
    attention.weights[ENCODER][1, 2] = np.eye(4)
    page = attention_page(attention, "x")
    rows = re.findall(r'data-kind="(\w+)" data-layer="(\d)" data-head="(\d)".*?</tr>', page)
    assert len(set(rows)) == len(rows) == 12
    [row] = re.findall(r'data-kind="encoder" data-layer="1" data-head="2".*?</tr>', page)
    assert "<td>looks at the token itself</td>" in row
    assert '<td class="number">100%</td>' in row
    facts = head_facts(attention.weights[CROSS][0, 0], CROSS)
    [row] = re.findall(r'data-kind="cross" data-layer="0" data-head="0".*?</tr>', page)
    assert f'<td class="number">{facts.entropy:.2f}</td><td class="number">{facts.distance:.2f}</td><td></td>' in row


def test_the_alignment_names_the_words_that_are_looked_at_most(attention):
    attention.weights[CROSS][:] = 0
    attention.weights[CROSS][:, :, 0, 1] = attention.weights[CROSS][:, :, 1, 3] = 1
    page = attention_page(attention, "x")
    assert '<th scope="row" dir="auto">fort</th><td dir="auto">undo 100%' in page
    assert "At most 1.6 bits of entropy are possible" in page  # over three words
    assert '<th scope="row" dir="auto">&lt;/s&gt;</th><td dir="auto">&lt;/s&gt; 100%' in page


def test_sentences_and_names_are_text_and_never_part_of_the_page(attention):
    evil = Attention(
        ["Ġ</script><img/src=x>", "[[DATA]]", "Ġ", "</s>"], attention.inputs, attention.target, attention.weights
    )
    page = attention_page(evil, "<b>[[SCRIPT]]")
    assert page.count("</script>") == 2
    assert "<img" not in page
    assert "<title>&lt;b&gt;[[SCRIPT]]</title>" in page
    assert data_of(page)["units"]["pieces"]["labels"][ENCODER][0][:2] == ["</script><img/src=x>", "[[DATA]]"]


def test_it_fetches_nothing(attention):
    page = attention_page(attention, "x")
    assert not re.findall(r'(?:src|href)="|url\(|@import', page)
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", page)


def test_a_sentence_too_long_for_a_screen_is_announced(attention):
    assert "too long for one screen" not in attention_page(attention, "x")
    size = WINDOW + 1
    long = Attention(["Ġa"] * size, ["<start>"], ["</s>"], {ENCODER: np.full((1, 1, size, size), 1 / size)})
    assert f"With {size} tokens it is too long for one screen: {WINDOW} tokens" in attention_page(long, "x")
    long = Attention(["</s>"], ["Ġa"] * size, ["Ġa"] * size, {CROSS: np.ones((1, 1, size, 1))})
    assert f"With {size} tokens it is too long for one screen" in attention_page(long, "x")


def test_the_sentences_stand_above_it_without_their_ends(attention):
    assert '<p dir="auto">undo</p><p dir="auto">fort</p>' in attention_page(attention, "x")
