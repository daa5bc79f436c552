import pytest

from vaswani.cli.evaluate_report import WIDTH, report
from vaswani.results import ParsingEvaluation, TranslationEvaluation


TEXT = {"test_set": "test.de", "split": "test", "sentences": 2000, "exact_match": 12.5}
OF_A_MODEL = {"nll": 1.25, "perplexity": 3.49, "decoding": "beam 4, alpha 0.6", "checkpoint": "model"}


def translations(**fields) -> TranslationEvaluation:
    scores = {"sacrebleu": 30.0, "sacrebleu_lowercased": 31.0, "chrf": 55.5, "paper_bleu": 29.0}
    scores |= {"paper_bleu_without_split": 28.0, "sacrebleu_signature": "nrefs:1", "chrf_signature": "chrF2"}
    return TranslationEvaluation(**TEXT | scores | {"target_lang": "de", "paper_bleu_signature": "tok:moses"} | fields)


def test_both_protocols_are_told_apart_and_the_papers_tricks_named():
    said = report(translations())
    assert said.startswith("test.de, test: 2,000 sentences, target language de\n\nToday's protocol\n  nrefs:1\n")
    assert "The paper's protocol, not to be compared with the above\n  tok:moses\n" in said
    assert said.endswith("Tricks on: quotes made straight and compounds split, in the paper's protocol alone")
    assert "Perplexity" not in said


@pytest.mark.parametrize(
    ("tokens", "title"),
    [("tok:none|smooth:none", "Of tokens as they are"), ("tok:13a|smooth:exp", "Today's protocol")],
)
def test_without_the_papers_protocol_there_is_no_trick_and_only_tokenized_text_is_called_so(tokens, title):
    """Moses' tokenizer may not know the language, too."""
    without = dict.fromkeys(("paper_bleu", "paper_bleu_without_split", "paper_bleu_signature"))
    said = report(translations(**without, sacrebleu_signature=f"nrefs:1|case:mixed|eff:no|{tokens}|version:2.6.0"))
    assert said.splitlines()[2] == title
    assert "paper's protocol" not in said
    assert said.endswith("Equal to their reference         12.50%")


def test_of_a_model_its_search_and_weights_are_told_within_the_width_of_a_terminal():
    said = report(translations(**OF_A_MODEL, averaged_checkpoints=5))
    assert "Perplexity of a word piece        3.49   nll 1.25, unsmoothed" in said
    *_, tricks, rest = said.splitlines()
    assert tricks.startswith("Tricks on: beam 4, alpha 0.6 (weights: model, average of 5 checkpoint(s)); ")
    assert rest.startswith("  ")
    assert max(len(tricks), len(rest)) <= WIDTH
    assert "not known to be averaged" in report(translations(**OF_A_MODEL))


def test_a_comparison_says_how_sure_the_difference_is():
    result = {"difference": 1.5, "bootstrap_p_value": 0.01, "randomization_p_value": 0.02}
    for system, score in (("system", 30.0), ("baseline", 28.5)):
        result |= {system: score, f"{system}_mean": score, f"{system}_confidence": 0.9}
    assert report(translations(comparison={"sacrebleu": result})).endswith(
        "\n\nAgainst the baseline, sacrebleu: +1.50\n"
        "  system     30.00, bootstrap 30.00 +- 0.90 (95%)\n"
        "  baseline   28.50, bootstrap 28.50 +- 0.90 (95%)\n"
        "  p = 0.0100 by paired bootstrap, 0.0200 by approximate randomization"
    )


def test_parses_are_told_as_evalb_counts_them():
    scores = {"bracketing_recall": 90.0, "bracketing_precision": 80.0, "bracketing_f1": 84.71, "evalb_errors": 3}
    scores |= {"tagging_accuracy": 95.0, "average_crossing": 0.5, "no_crossing": 70.0, "two_or_less_crossing": 93.0}
    by_length = {"1-10": {"sentences": 7, "bracketing_f1": 91.0}}
    evaluation = ParsingEvaluation(**TEXT, **scores, bracketing_f1_by_length=by_length)
    said = report(evaluation)
    for part in (
        "test.de, test: 2,000 trees\n",
        "  labelled F1                    84.71\n",
        "  no crossing, two or less       70.00%, 93.00%\n",
        "  errors, which count nowhere        3\n",
    ):
        assert part in said
    assert said.endswith("  F1 of 1-10 words               91.00   7 sentences")
    of_a_model = report(
        ParsingEvaluation(**TEXT, **scores, **OF_A_MODEL, well_formed=99.0, bracketing_f1_by_length={})
    )
    assert "Well-formed before any repair    99.00%" in of_a_model
    assert of_a_model.endswith("Tricks on: beam 4, alpha 0.6 (weights: model)")
