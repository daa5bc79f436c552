import pytest

from training.tables.parsing import floors
from training.tables.parsing.floors import measure_floors, right_branching, right_branching_label


@pytest.mark.parametrize(
    ("leaves", "expected"),
    [
        ([("a", "DT"), ("b", "NN"), ("c", "VB"), (".", ".")], "(S (DT a) (VP (NN b) (VB c)) (. .))"),
        ([("a", "DT"), ("b", "NN")], "(S (DT a) (NN b))"),
        ([("a", "DT"), (".", ".")], "(S (DT a) (. .))"),
        ([("a", "DT")], "(S (DT a))"),
        ([(".", ".")], "(S (. .))"),
    ],
)
def test_a_tree_that_branches_to_the_right(leaves, expected):
    assert str(right_branching(leaves, "VP")) == expected


def test_its_label_is_the_most_frequent_one_at_the_end_of_sentences(trees):
    assert right_branching_label(trees[:3]) == "VP"


def test_each_floor_is_by_its_own_grammar(trees, monkeypatch):
    class Grammar:
        def __init__(self, trees, vertical, horizontal):
            self.name = f"{vertical} {horizontal}"

        def parse(self, words, tags=None):
            return f"{self.name} {' '.join(words)} {tags and ' '.join(tags)}"

    monkeypatch.setattr(floors, "Pcfg", Grammar)
    found = measure_floors(trees[:3], [[("a", "DT"), ("b", "NN")]])
    assert {name: str(parsed) for name, [parsed] in found.items()} == {
        "right-branching VP over the right tags": "(S (DT a) (NN b))",
        "PCFG": "1 2 a b None",
        "PCFG, parents in labels": "2 1 a b None",
        "PCFG, parents in labels, right tags": "2 1 a b DT NN",
    }


def test_every_floor_parses_every_sentence_over_its_own_words(trees):
    sentences = [tree.leaves() for tree in trees] + [[("x", "POS"), ("y", "POS")]]
    found = measure_floors(trees, sentences)
    assert len(found) == 4
    for parsed in found.values():
        assert [[word for word, _ in tree.leaves()] for tree in parsed] == [
            [word for word, _ in leaves] for leaves in sentences
        ]
    tags = found["PCFG, parents in labels, right tags"]
    assert [tree.leaves() for tree in tags] == sentences
    assert found["PCFG, parents in labels"][:4] == trees
