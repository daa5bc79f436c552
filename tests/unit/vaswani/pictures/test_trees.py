import re
from xml.etree import ElementTree

import pytest
from small_parser import SENTENCES

from vaswani.models.trees_vaswani import Tree
from vaswani.pictures.trees import CHARACTER, GAP, LEVEL, draw_trees, height


SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str, css: str) -> list[ElementTree.Element]:
    return [text for text in ElementTree.fromstring(svg).iter(f"{SVG}text") if text.get("class") == css]


def test_a_picture_has_words_tags_labels_and_titles_in_their_order(trees):
    svg = draw_trees({"model": trees[0], "gold & true": trees[1]})
    assert [text.text for text in texts(svg, "word")] == [*SENTENCES[0].split(), *SENTENCES[1].split()]
    assert [text.text for text in texts(svg, "tag")][:4] == ["DT", "NN", "VBZ", "."]
    assert sorted(text.text or "" for text in texts(svg, "label"))[:3] == ["NP", "NP", "NP"]
    assert [text.text for text in texts(svg, "title")] == ["model", "gold & true"]


def test_words_stand_in_a_line_from_left_to_right_and_constituents_above_them(trees):
    svg = draw_trees({"model": trees[1]})
    words = [(float(text.get("x") or 0), float(text.get("y") or 0)) for text in texts(svg, "word")]
    assert words == sorted(words)
    assert len({y for _, y in words}) == 1
    assert all(float(text.get("y") or 0) < words[0][1] for text in texts(svg, "label"))


def test_a_constituent_stands_above_the_middle_of_its_children_and_its_highest_one():
    tree = Tree("S", [Tree("NN", ["a"]), Tree("NP", [Tree("DT", ["b"]), Tree("NN", ["c"])])])
    svg = draw_trees({"model": tree})
    found = {
        kind: [(float(t.get("x") or 0), float(t.get("y") or 0)) for t in texts(svg, kind)] for kind in ("tag", "label")
    }
    (first, second, third), (inner, outer) = found["tag"], found["label"]
    assert inner[0] == (second[0] + third[0]) / 2
    assert outer[0] == pytest.approx((first[0] + inner[0]) / 2, abs=0.1)
    assert first[1] - inner[1] == inner[1] - outer[1] == LEVEL


def test_the_longer_of_word_and_tag_takes_its_room():
    svg = draw_trees({"model": Tree("S", [Tree("LONGESTTAG", ["a"]), Tree("LONGESTTAG", ["b"])])})
    left, right = (float(text.get("x") or 0) for text in texts(svg, "tag"))
    assert right - left == pytest.approx(CHARACTER * len("LONGESTTAG") + GAP, abs=0.1)


def test_everything_lies_within_the_picture_and_no_two_lines_cross(trees):
    root = ElementTree.fromstring(draw_trees({str(number): tree for number, tree in enumerate(trees)}))
    width, below = float(root.get("width") or 0), float(root.get("height") or 0)
    lines = [[float(line.get(name) or 0) for name in ("x1", "y1", "x2", "y2")] for line in root.iter(f"{SVG}line")]
    assert all(0 <= x <= width and 0 <= y <= below for x1, y1, x2, y2 in lines for x, y in ((x1, y1), (x2, y2)))
    across = [line for line in lines if line[1] == line[3]]
    down = [line for line in lines if line[0] == line[2]]
    assert len(across) + len(down) >= len(lines)
    for left, y, right, _ in across:
        for x, top, _, bottom in down:
            assert not (left < x < right and top < y < bottom)


def test_marks_of_xml_within_words_are_text():
    svg = draw_trees({"model": Tree("S", [Tree("NN", ["<b>&"])])})
    assert [text.text for text in texts(svg, "word")] == ["<b>&"]
    assert not re.search("<b>", svg)
    svg = draw_trees({"model": Tree("S", [Tree("NN", ["a\x07\ufffe\ud800"])])})
    assert [text.text for text in texts(svg, "word")] == ["a\ufffd\ufffd\ufffd"]


def test_height_counts_constituents_above_one_another(trees):
    assert [height(tree) for tree in trees] == [2, 3, 3, 2]
    assert height(Tree("NN", ["a"])) == 0
