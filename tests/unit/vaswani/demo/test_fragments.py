import re

from vaswani.demo.fragments import alignment_section, alternatives_table, problem
from vaswani.demo.interpreter import Alignment
from vaswani.translation import Hypothesis


def test_a_row_has_line_rank_score_and_translation():
    found = [[Hypothesis("eins", -0.25), Hypothesis("zwei", -1.5)], [Hypothesis("", 0.0)], [Hypothesis("drei", -2.0)]]
    rows = re.findall(r"<tr>(<td.*?)</tr>", alternatives_table(["one", " ", "three"], found))
    cells = [re.findall(r">([^<]*)</td>", row) for row in rows]
    assert cells == [["1", "1", "-0.250", "eins"], ["1", "2", "-1.500", "zwei"], ["3", "1", "-2.000", "drei"]]


def test_a_word_that_was_written_has_its_weights_in_percent():
    alignment = Alignment(["one", "two", "</s>"], ["eins", "zwei"], [[0.7, 0.2, 0.1], [0.004, 0.99, 0.006]])
    html = alignment_section([None, alignment])
    assert re.findall(r'data-weights="(.*?)">(\w+)</button>', html) == [
        ("[70, 20, 10]", "eins"),
        ("[0, 99, 1]", "zwei"),
    ]
    assert re.findall(r"<span data-source>(.*?)</span>", html) == ["one", "two", "(end of the sentence)"]
    assert html.count('class="pair"') == 1


def test_what_was_written_is_text_and_never_part_of_the_page():
    evil = "<img src=x>&"
    alignment = Alignment([evil, "</s>"], [evil], [[0.5, 0.5]])
    for html in (
        problem(evil), alternatives_table(["x"], [[Hypothesis(evil, 0.0)]]), alignment_section([alignment]),
    ):  # fmt: skip
        assert "<img" not in html
        assert "&lt;img src=x&gt;&amp;" in html


def test_no_problem_is_no_paragraph():
    assert problem("") == ""
