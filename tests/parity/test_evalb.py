"""Our scores of parses against those of the program EVALB, which scored the trees of evalb.json with COLLINS.prm.

The trees are ours. The program is the version of January 2006, as AllenNLP's repository has it.
"""

import json
from pathlib import Path

import pytest

from vaswani.models.trees_vaswani import Tree
from vaswani.parsing.evalb import Counts, count, length
from vaswani.parsing.scores import score_trees
from vaswani.parsing.treebank import read_trees


PROGRAM = json.loads((Path(__file__).parent / "evalb.json").read_text())
NAMES = {"matched": "matched", "gold": "gold_brackets", "predicted": "predicted_brackets", "crossing": "crossing"}
NAMES |= {"words": "words", "correct_tags": "correct_tags"}
SUMMARY = {
    "bracketing_recall": "Bracketing Recall",
    "bracketing_precision": "Bracketing Precision",
    "bracketing_f1": "Bracketing FMeasure",
    "exact_match": "Complete match",
    "average_crossing": "Average crossing",
    "no_crossing": "No crossing",
    "two_or_less_crossing": "2 or less crossing",
    "tagging_accuracy": "Tagging accuracy",
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> list[tuple[Tree, Tree]]:
    sides = []
    for side in ("gold", "predicted"):
        path = tmp_path_factory.mktemp("evalb") / side
        path.write_text("".join(row[side] + "\n" for row in PROGRAM["sentences"]))
        sides.append(list(read_trees(path)))
    return list(zip(*sides, strict=True))


def test_each_sentence_counts_as_the_program_counted_it(pairs):
    errors = 0
    for (gold, predicted), row in zip(pairs, PROGRAM["sentences"], strict=True):
        counts = count(gold, predicted)
        assert counts.errors == (row["status"] > 0)
        errors += counts.errors
        assert {name: getattr(counts, name) for name in NAMES} == {name: row[key] for name, key in NAMES.items()}
        assert length(gold) == row["length"]
    assert 5 < errors < len(pairs) / 2


def test_the_summary_is_the_programs(pairs):
    scores = score_trees(*zip(*pairs, strict=True))
    assert {key: scores[name] for name, key in SUMMARY.items()} == {
        key: PROGRAM["summary"][key] for key in SUMMARY.values()
    }


def test_a_control_that_counts_punctuation_disagrees(pairs, monkeypatch):
    monkeypatch.setattr("vaswani.parsing.evalb.DELETED", frozenset({"TOP", "-NONE-"}))
    assert score_trees(*zip(*pairs, strict=True))["bracketing_f1"] != pytest.approx(
        PROGRAM["summary"]["Bracketing FMeasure"], abs=0.01
    )


def test_a_tree_matches_itself_and_nothing_counts_of_no_sentence(pairs):
    gold = [right for right, _ in pairs]
    scores = score_trees(gold, gold)
    assert (scores["bracketing_f1"], scores["exact_match"], scores["evalb_errors"]) == (100, 100, 0)
    assert set(Counts().scores.values()) == {0.0}
