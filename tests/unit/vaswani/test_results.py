import dataclasses

import pytest

from vaswani.results import ParsingEvaluation


def test_a_row_of_translations_keeps_what_is_not_known_and_leaves_out_what_does_not_apply(evaluation):
    row = evaluation.to_row()
    assert (row["sacrebleu"], row["step"], row["decoding"]) == (20.1, 500, "beam 4, alpha 0.6")
    assert "seconds" not in row
    without = dataclasses.replace(evaluation, paper_bleu=None, step=None).to_row()
    assert (without["paper_bleu"], without["step"]) == (None, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        evaluation.nll = 0.0


def test_a_row_of_parses_has_its_own_scores():
    scores = {"bracketing_recall": 1.0, "bracketing_precision": 2.0, "bracketing_f1": 3.0, "tagging_accuracy": 4.0}
    scores |= {"average_crossing": 5.0, "no_crossing": 6.0, "two_or_less_crossing": 7.0, "exact_match": 8.0}
    groups = {"1-10": {"sentences": 3, "bracketing_f1": 9.0}}
    evaluation = ParsingEvaluation(split="test", sentences=3, evalb_errors=1, bracketing_f1_by_length=groups, **scores)
    of_a_model = dataclasses.replace(evaluation, well_formed=98.5)
    assert of_a_model.scores() == [
        "F1 3.00 (recall 1.00, precision 2.00)", "tags 4.0%", "well-formed 98.5%", "1 left out by EVALB",
    ]  # fmt: skip
    assert len(dataclasses.replace(of_a_model, evalb_errors=0).scores()) == 3
    assert evaluation.to_row() == {"split": "test", "sentences": 3, "evalb_errors": 1, **scores} | {
        "bracketing_f1_by_length": groups
    }


def test_a_line_says_what_was_evaluated_and_how(evaluation):
    line = dataclasses.replace(evaluation, seconds=3.0, truncated_sources=2).summary()
    assert line == (
        "test at step 500: sacreBLEU 20.10 (lowercased 21.20), chrF 52.30, BLEU by the paper's protocol 23.40, "
        "exact 6.6%, nll 1.250, 1,234 sentences in 3 s, beam 4, alpha 0.6, "
        "4 checkpoints averaged, 2 translated up to max_source_length"
    )
    short = dataclasses.replace(evaluation, seconds=3.0, averaged_checkpoints=1, paper_bleu=None).summary()
    assert short.endswith("exact 6.6%, nll 1.250, 1,234 sentences in 3 s, beam 4, alpha 0.6")
