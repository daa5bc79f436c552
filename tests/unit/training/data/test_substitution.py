import pytest
from small_parser import TREES

from training.data import substitution
from training.data.substitution import constituents, parts, replaced, substituted
from vaswani.errors import UserError
from vaswani.models.trees_vaswani import Tree


def test_constituents_are_named_by_their_label_and_the_one_above(trees):
    assert [(*kind, str(node)) for kind, node in constituents(trees[0])] == [
        ("NP", "S", "(NP (DT the) (NN dog))"),
        ("DT", "NP", "(DT the)"),
        ("NN", "NP", "(NN dog)"),
        ("VP", "S", "(VP (VBZ sleeps))"),
        ("VBZ", "VP", "(VBZ sleeps)"),
        (".", "S", "(. .)"),
    ]


def test_only_the_one_that_is_meant_is_replaced(trees):
    tree = Tree("S", [trees[0].children[0], Tree("NP", [Tree("DT", ["the"]), Tree("NN", ["dog"])])])
    new = Tree("NP", [Tree("PRP", ["we"])])
    assert str(replaced(tree, tree.children[1], new)) == "(S (NP (DT the) (NN dog)) (NP (PRP we)))"


def test_every_part_of_a_new_tree_stands_where_its_kind_stood(trees):
    kinds = {kind for tree in trees for kind, _ in constituents(tree)}
    made = list(substituted(trees, 200, seed=1, max_words=7))
    assert len(made) == 200
    assert {kind for tree in made for kind, _ in constituents(tree)} <= kinds
    assert max(len(tree.leaves()) for tree in made) == 7
    assert len({str(tree) for tree in made} - set(TREES)) > 20
    assert [str(tree) for tree in trees] == TREES  # those that were given are as they were


@pytest.mark.parametrize("most", [1, 3])
def test_from_one_to_so_many_constituents_are_replaced(trees, most, monkeypatch):
    calls, counts = [], []
    monkeypatch.setattr(substitution, "constituents", lambda tree: calls.append(tree) or constituents(tree))
    for _ in substituted(trees, 50, replacements=most):
        counts.append(len(calls))
        calls.clear()
    counts[0] -= len(trees)  # where their kinds were collected
    assert set(counts) == {*range(1, most + 1)}


def test_trees_that_cannot_be_made_are_refused_instead_of_waited_for(trees):
    alone = Tree("FRAG", [Tree("NN", ["tea"])])
    with pytest.raises(UserError, match=r"treebank_made=5 must be 0 for this treebank: .* no tree of 2 to 60 words"):
        list(substituted([alone], 5))
    with pytest.raises(UserError, match="no tree of 2 to 1 words"):
        list(substituted(trees, 5, max_words=1))


def test_the_seed_decides(trees):
    first, again, other = (list(map(str, substituted(trees, 20, seed))) for seed in (1, 1, 2))
    assert first == again != other


def test_parts_are_the_constituents_of_some_length_below_the_root(trees):
    assert [str(part) for part in parts(trees[:2], 3)] == [
        "(NP (DT the) (NN dog))",
        "(NP (DT a) (NN cat))",
        "(VP (VBZ sees) (NP (DT the) (NN dog)))",
        "(NP (DT the) (NN dog))",
    ]
    assert list(parts(trees, 1)) == []
