from dataclasses import replace

import pytest
import sacrebleu

from training.reports.records import Outputs
from training.reports.sentences import EXTREMES, MOMENTS, Part, compare, extremes, through_training


def test_words_that_are_not_shared_are_marked_on_both_sides():
    found = compare("s", "the big cat sat", "the cat sat down")
    assert found.output == [Part("the", True), Part("big", False), Part("cat sat", True)]
    assert found.reference == [Part("the", True), Part("cat sat", True), Part("down", False)]
    assert found.chrf == pytest.approx(sacrebleu.sentence_chrf("the big cat sat", ["the cat sat down"]).score)


def test_an_empty_output_shares_nothing():
    found = compare("s", "", "a b")
    assert (found.output, found.reference) == ([], [Part("a b", False)])


def evaluation(step: int | None = None, count: int = 40) -> Outputs:
    references = [f"sentence number {number}" for number in range(count)]
    outputs = [text if number % 2 else f"other {number}" for number, text in enumerate(references)]
    return Outputs("test", step, [str(number) for number in range(count)], references, outputs)


def test_the_worst_and_the_best_are_what_sacrebleu_says():
    outputs = evaluation()
    worst, best = extremes(outputs)
    assert (len(worst), len(best)) == (EXTREMES, EXTREMES)
    scores = sorted(
        sacrebleu.sentence_chrf(o, [r]).score for o, r in zip(outputs.outputs, outputs.references, strict=True)
    )
    assert [one.chrf for one in worst] == pytest.approx(scores[:EXTREMES])
    assert [one.chrf for one in best] == pytest.approx(scores[::-1][:EXTREMES])
    assert all(int(one.source) % 2 for one in best)


def test_no_sentence_is_both_and_none_stands_twice():
    few = Outputs("test", None, ["a"] * 3, ["x", "x", "y"], ["x", "x", "z"])
    worst, best = extremes(few)
    assert ([one.chrf for one in worst], [one.chrf for one in best]) == ([0.0], [100.0])
    assert extremes(Outputs("test", None, [], [], [])) == ([], [])
    right = ["a b c", "a b c d e"]  # the longer one says more
    _, best = extremes(Outputs("test", None, list("1234"), [*right, "x", "y"], [*right, "z", "w"]))
    assert [one.source for one in best] == ["2", "1"]


def test_a_few_sentences_are_followed_through_training_to_the_end():
    moments = [evaluation(step) for step in range(1, 20)] + [evaluation()]
    samples = through_training(moments)
    assert [rows[0].source for rows in samples] == ["0", "10", "20", "30"]
    for rows in samples:
        assert len(rows) <= MOMENTS
        assert rows[-1].label == "at the end"
    few = replace(evaluation(1), outputs=evaluation(1).outputs[:20])
    assert [len(rows) for rows in through_training([few, evaluation()])] == [2, 2, 1, 1]
    assert through_training([]) == []
    assert len(through_training([evaluation(1, count=2)])) == 2
