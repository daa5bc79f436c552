"""Rules of the scorer by hand; tests/parity/test_evalb.py compares it with the program."""

import pytest

from vaswani.parsing.evalb import Counts, count
from vaswani.parsing.treebank import read_trees


@pytest.fixture
def compare(tmp_path):
    def compare(gold: str, predicted: str) -> Counts:
        (tmp_path / "trees").write_text(f"{gold}\n{predicted}\n")
        return count(*read_trees(tmp_path / "trees"))

    return compare


def test_brackets_match_in_label_and_words(compare):
    counts = compare("(S (NP (DT a) (NN b)) (VP (VB c)))", "(S (NP (DT a)) (VP (NN b) (VB c)))")
    assert (counts.gold, counts.predicted, counts.matched, counts.exact) == (3, 3, 1, 0)
    assert (counts.crossing, counts.without_crossing, counts.up_to_two_crossing) == (1, 0, 1)
    assert (counts.words, counts.correct_tags) == (3, 3)


def test_adverbs_and_particles_are_one_label(compare):
    assert compare("(S (NN a) (PRT (RP b)))", "(S (NN a) (ADVP (RP b)))").exact == 1


def test_punctuation_does_not_count_wherever_it_hangs(compare):
    counts = compare("(S (NP (NN a)) (, ,) (VP (VB b)) (. .))", "(S (NP (NN a) (, ,)) (VP (VB b) (. .)))")
    assert (counts.exact, counts.words) == (1, 2)


def test_as_many_equal_brackets_match_as_both_have(compare):
    counts = compare("(S (NP (NP (NP (NN a)))) (VB b))", "(S (NP (NP (NN a))) (VB b))")
    assert (counts.gold, counts.predicted, counts.matched) == (4, 3, 3)


def test_a_wrong_part_of_speech_costs_no_bracket(compare):
    counts = compare("(S (NN a) (VB b))", "(S (NN a) (NN b))")
    assert (counts.exact, counts.correct_tags) == (1, 1)


@pytest.mark.parametrize("predicted", ["(S (NN a) (, b))", "(S (NN a) (NN c))", "(S (NN a) (NN b) (NN c))", "(, a)"])
def test_other_words_are_an_error(compare, predicted):
    assert compare("(S (NN a) (NN b))", predicted) == Counts(sentences=1, errors=1)
