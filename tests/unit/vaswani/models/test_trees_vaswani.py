import random

import pytest

from vaswani.models.trees_vaswani import Tree, linearize, restore


def leaf(tag: str, word: str) -> Tree:
    return Tree(tag, [word])


TREE = Tree(
    "S",
    [
        Tree("NP", [leaf("DT", "the"), leaf("NN", "dog")]),
        Tree("VP", [leaf("VBZ", "sleeps"), Tree("ADVP", [leaf("RB", "here")])]),
        leaf(".", "."),
    ],
)
WORDS = ["the", "dog", "sleeps", "here", "."]
SYMBOLS = "(S (NP (DT) (NN) )NP (VP (VBZ) (ADVP (RB) )ADVP )VP (.) )S"


def test_a_tree_as_brackets_and_as_symbols():
    assert str(TREE) == "(S (NP (DT the) (NN dog)) (VP (VBZ sleeps) (ADVP (RB here))) (. .))"
    assert linearize(TREE) == SYMBOLS
    assert TREE.leaves() == list(zip(WORDS, ["DT", "NN", "VBZ", "RB", "."], strict=True))


@pytest.mark.parametrize("symbols", [SYMBOLS, SYMBOLS.replace(" ", "")])
def test_symbols_become_the_tree_again_with_or_without_spaces(symbols):
    assert restore(symbols, WORDS) == (TREE, 0)


def test_one_word_needs_no_constituent():
    assert restore("(NN)", ["dog"]) == (leaf("NN", "dog"), 0)
    assert restore("(NP (NN) )NP", ["dog"]) == (Tree("NP", [leaf("NN", "dog")]), 0)


@pytest.mark.parametrize(
    ("symbols", "expected", "repairs"),
    [
        # a bracket is missing: the next one that closes closes what is within
        ("(S (NP (DT) (NN) (VP (VBZ) )VP )S", "(S (NP (DT a) (NN b) (VP (VBZ c))))", 1),
        # none is open that it could close
        ("(S (DT) (NN) )NP (VBZ) )S", "(S (DT a) (NN b) (VBZ c))", 1),
        # the sentence ends too early: words go to the end of the first constituent
        ("(S (NP (DT) )NP )S", "(S (NP (DT a)) (NN b) (NN c))", 4),
        ("(S (NP (DT)", "(S (NP (DT a)) (NN b) (NN c))", 4),
        # too many parts of speech
        ("(S (DT) (NN) (VBZ) (JJ) )S", "(S (DT a) (NN b) (VBZ c))", 1),
        # a constituent without words, and one within it
        ("(S (DT) (NN) (NP (PP )PP )NP (VBZ) )S", "(S (DT a) (NN b) (VBZ c))", 2),
        # the first constituent is closed before its time, and again
        ("(S (DT) )S (VP (NN) )VP (VBZ) )S", "(S (DT a) (VP (NN b)) (VBZ c))", 1),
        # two roots
        ("(DT) (NP (NN) (VBZ) )NP", "(TOP (DT a) (NP (NN b) (VBZ c)))", 1),
        # what is no symbol
        ("(S of (DT) (NN) ( ) (VBZ) )S", "(S (DT a) (NN b) (VBZ c))", 3),
        ("", "(TOP (NN a) (NN b) (NN c))", 4),
    ],
)
def test_what_is_no_tree_is_repaired_by_the_rule(symbols, expected, repairs):
    restored = restore(symbols, ["a", "b", "c"])
    assert (str(restored.tree), restored.repairs) == (expected, repairs)


def test_anything_becomes_a_tree_over_just_the_words():
    generator = random.Random(3)
    parts = ["(S", "(NP", ")S", ")NP", ")X", "(NN)", "(,)", "(", ")", "()", "word", "</s>", "  "]
    for _ in range(500):
        symbols = " ".join(generator.choices(parts, k=generator.randrange(40)))
        words = [f"w{number}" for number in range(generator.randrange(1, 9))]
        tree, repairs = restore(symbols, words)
        assert [word for word, _ in tree.leaves()] == words
        again = restore(linearize(tree), words)
        assert again == (tree, 0)
        if repairs == 0:
            assert linearize(tree) == " ".join(symbols.split())


def test_a_thousand_open_brackets_are_no_crash():
    tree, repairs = restore("(S " * 5000 + "(NN) " * 5000, ["a", "b"])
    assert (len(tree.leaves()), repairs) == (2, 5000 + 4998)
    assert str(tree).endswith("(NN a) (NN b)" + ")" * 5000)


def test_given_parts_of_speech_replace_those_of_the_model():
    tree, repairs = restore(SYMBOLS, WORDS, tags=["A", "B", "C", "D", "E"])
    assert ([tag for _, tag in tree.leaves()], repairs) == (["A", "B", "C", "D", "E"], 0)


def test_punctuation_and_no_other_word_has_a_part_of_speech_of_punctuation():
    words, symbols = [",", "?", "''", "'", "dog"], "(S (NN) (,) (NN) ('') (.) )S"
    tree, repairs = restore(symbols, words)
    assert ([tag for _, tag in tree.leaves()], repairs) == ([",", ".", "''", "''", "NN"], 0)
    gold = restore(symbols, words, is_gold=True).tree
    assert [tag for _, tag in gold.leaves()] == ["NN", ",", "NN", "''", "."]


def test_a_sentence_needs_a_word():
    with pytest.raises(ValueError, match="a sentence must have at least one word"):
        restore(SYMBOLS, [])
