"""The scorer of this project as a metric of `evaluate`: `evaluate.load("src/vaswani/scoring")`.

Works offline, from this folder alone; needs sacrebleu and sacremoses.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from .protocols import score, suspicions


DESCRIPTION = """\
Scores of translations by two protocols that must not be compared with each other: sacreBLEU and chrF, with signature,
and the tokenized, compound-split BLEU of "Attention Is All You Need".
"""
INPUTS = """\
predictions: list of str, translations as plain text.
references: list of str, one for each.
target_lang: str, their language; default "de". None leaves the paper's protocol out.
lowercase: bool, whether case does not matter; default False.
tokenized: bool, whether both were tokenized before: their tokens are counted as they are; default False.
Returns sacrebleu, sacrebleu_lowercased, sacrebleu_signature, chrf, chrf_signature, paper_bleu,
paper_bleu_without_split, paper_bleu_signature, exact_match, sentences.
"""
CITATION = "Vaswani et al. 2017, Attention Is All You Need; Post 2018, A Call for Clarity in Reporting BLEU Scores"


class TranslationScores(evaluate.Metric):
    """Scores translations, and warns where they are empty or look tokenized."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": text, "references": text}),
        )

    def _compute(
        self,
        predictions: Sequence[str],
        references: Sequence[str],
        target_lang: str | None = "de",
        lowercase: bool = False,
        tokenized: bool = False,
    ) -> dict[str, Any]:
        # Columns of Arrow are no lists.
        hypotheses, references = list(predictions), list(references)
        for suspicion in suspicions(hypotheses, references, tokenized):
            warnings.warn(suspicion, stacklevel=2)
        return score(hypotheses, references, target_lang, lowercase, tokenized)
