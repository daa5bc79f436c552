import math

import nltk
import pytest
from small_parser import SENTENCES, TREES

from training.tables.parsing.pcfg import Pcfg, binarize, signature, tag_of, unbinarize
from vaswani.models.trees_vaswani import Tree
from vaswani.parsing.treebank import read_trees


AMBIGUOUS = """(S (NP (PRP we)) (VP (VBP see) (NP (NP (DT the) (NN dog)) (PP (IN with) (NP (NN tea))))))
(S (NP (PRP we)) (VP (VBP see) (NP (NP (DT the) (NN cat)) (PP (IN with) (NP (NN tea))))))
(S (NP (PRP we)) (VP (VBP see) (NP (DT the) (NN cat)) (PP (IN with) (NP (NN tea)))))
"""


@pytest.fixture
def trees(tmp_path) -> list[Tree]:
    (tmp_path / "trees").write_text("".join(tree + "\n" for tree in TREES) + AMBIGUOUS)
    return list(read_trees(tmp_path / "trees"))


def retagged(tree: Tree) -> Tree:
    """Return a tree whose words are their parts of speech."""
    return Tree(tree.label, [tree.label] if tree.is_leaf else [retagged(child) for child in tree.children])


@pytest.mark.parametrize(("vertical", "horizontal"), [(1, 2), (2, 1)])
def test_a_tree_comes_back_from_its_binary_form(vertical, horizontal, trees):
    for tree in [*trees, Tree("ADVP|PRT", [Tree("RB", ["a"]), Tree("RB", ["b"]), Tree("RB", ["c"])])]:
        assert unbinarize(binarize(tree, vertical, horizontal)) == tree


@pytest.mark.parametrize(("vertical", "horizontal"), [(1, 2), (2, 1)])
def test_what_it_was_read_off_is_parsed_again(vertical, horizontal, trees):
    grammar = Pcfg(trees[:4], vertical, horizontal)
    for tree, sentence in zip(trees, SENTENCES, strict=False):
        assert grammar.parse(sentence.split()) == tree


def test_the_more_frequent_of_two_trees_wins(trees):
    sentence, noun, verb = ["we", "see", "the", "cat", "with", "tea"], trees[5], trees[6]
    assert Pcfg([noun] * 9 + [verb]).parse(sentence) == noun
    assert Pcfg([noun] + [verb] * 9).parse(sentence) == verb


def test_the_best_tree_is_that_of_nltks_own_parser(trees):
    """On trees whose words are their parts of speech, as NLTK's grammar has no other words."""
    bare = [retagged(tree) for tree in trees]
    grammar = Pcfg(bare)
    rules = [rule for tree in bare for rule in binarize(tree, 1, 2).productions()]
    start = nltk.Nonterminal("START")
    rules += [nltk.Production(start, [nltk.Nonterminal(binarize(tree, 1, 2).label())]) for tree in bare]
    theirs = nltk.ViterbiParser(nltk.induce_pcfg(start, rules))
    for sentence in ("PRP VBP DT NN IN NN", "PRP VBP DT NN IN NN IN NN", "DT NN VBZ DT NN ."):
        [best] = theirs.parse(sentence.split())
        assert grammar.parse(sentence.split(), sentence.split()) == unbinarize(nltk.Tree.convert(best[0]))


def test_unknown_words_are_read_by_their_looks_and_given_tags_count(trees):
    grammar = Pcfg(trees[:4])
    assert grammar.parse(["the", "cog", "sleeps", "."]) is not None
    tagged = grammar.parse(["x", "y", "z", "."], ["DT", "NN", "VBZ", "."])
    assert [tag for _, tag in tagged.leaves()] == ["DT", "NN", "VBZ", "."]
    assert grammar.parse(["the", "the"], ["POS", "POS"]) is None


def test_probabilities_of_the_tags_of_a_word_add_up_to_one(trees):
    grammar = Pcfg(trees)
    for word in ("the", "dog", "Xylophon", "1999"):
        assert math.isclose(sum(grammar.tag_probabilities(word).values()), 1.0)


def test_rare_words_may_have_the_tags_of_other_rare_ones_that_look_alike():
    rare = Tree("S", [Tree("VBD", ["walked"]), Tree("VBN", ["talked"])])
    grammar = Pcfg([rare] + [Tree("S", [Tree("JJ", ["looked"]), Tree("NN", ["x"])])] * 5)
    assert grammar.tag_probabilities("walked") == {"VBD": 0.75, "VBN": 0.25}
    assert grammar.tag_probabilities("balked") == {"VBD": 0.5, "VBN": 0.5}
    assert grammar.tag_probabilities("looked") == {"JJ": 1}


def test_a_word_counts_for_more_with_a_rarer_tag():
    """Two trees whose rules, and whose tags for x, are as likely; but other words are B more often than C."""
    frequent, rare = (Tree("S", [Tree("A", ["a"]), Tree(tag, ["x"])]) for tag in "BC")
    others = [Tree("S", [Tree("B", ["y"]), Tree("B", ["y"])])] * 20
    assert Pcfg([frequent, rare] * 5 + others).parse(["a", "x"]) == rare


def test_a_unary_chain_ends_in_its_part_of_speech():
    assert (tag_of("S+NP+NN"), tag_of("NP^<S>"), tag_of(".")) == ("NN", "NP", ".")


def test_words_look_alike_by_digits_capital_hyphen_and_ending():
    assert signature("Walking", 0) == signature("Talking", 0) != signature("talking", 0)
    assert signature("walked", 0) != signature("walking", 0)
    assert signature("walked", 1) == signature("walking", 1) != signature("3-walked", 1)
    assert signature("a", 2) == signature("B-2", 2)
