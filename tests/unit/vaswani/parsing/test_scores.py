from small_parser import SENTENCES

from vaswani.models.trees_vaswani import linearize, restore
from vaswani.parsing.scores import GROUPS, score, score_trees


def test_symbols_are_scored_as_the_trees_that_they_are_repaired_to(trees):
    references = list(map(linearize, trees))
    outputs = [references[0], references[1].replace("(VP", "(NP", 1), references[2], "(S (DT)"]
    scores = score(SENTENCES, outputs, references)
    read = [restore(output, words.split()).tree for output, words in zip(outputs, SENTENCES, strict=True)]
    expected = score_trees(trees, read)
    assert scores == expected | {"well_formed": 50.0}  # of the second, a bracket is closed that was not opened
    assert (scores["exact_match"], scores["sentences"], scores["evalb_errors"]) == (50.0, 4, 0)
    assert 0 < scores["bracketing_f1"] < 100


def test_right_symbols_score_100(trees):
    references = list(map(linearize, trees))
    scores = score(SENTENCES, references, references)
    names = ("bracketing_f1", "bracketing_recall", "bracketing_precision", "exact_match", "tagging_accuracy")
    assert {scores[name] for name in (*names, "well_formed", "no_crossing")} == {100.0}


def test_a_group_ends_with_its_longest_sentences():
    trees = [restore("(S " + "(NN) " * size + ")S", ["a"] * size).tree for size in (10, 11, 20, 21, 30, 31, 40, 41)]
    groups = score_trees(trees, trees)["bracketing_f1_by_length"]
    assert {name: group["sentences"] for name, group in groups.items()} == dict(
        zip(GROUPS, (1, 2, 2, 2, 1), strict=True)
    )


def test_sentences_are_grouped_by_their_words():
    long = restore("(S " + "(NN) " * 41 + ")S", ["a"] * 41).tree
    ten, eleven = (restore("(S " + "(NN) " * size + ")S", ["a"] * size).tree for size in (10, 11))
    wrong = restore("(X " + "(NN) " * 11 + ")X", ["a"] * 11).tree
    groups = score_trees([long, ten, eleven], [long, ten, wrong])["bracketing_f1_by_length"]
    assert tuple(groups) == GROUPS
    assert [group["sentences"] for group in groups.values()] == [1, 1, 0, 0, 1]
    assert [group["bracketing_f1"] for group in groups.values()] == [100.0, 0.0, 0.0, 0.0, 100.0]
