"""What comes of an evaluation: a row of `metrics.jsonl`, a line of the card, the JSON of ``vaswani evaluate``."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar


# Fields that stand in a row together, with null where one of them is not known.
WEIGHTS = ("step", "averaged_checkpoints", "checkpoint")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One evaluation, of whatever a model writes.

    Attributes
    ----------
    step, averaged_checkpoints, checkpoint
        Which weights: the update, of how many checkpoints they are the average, and their name.
    split, test_set, target_lang
        Which text.
    nll, perplexity : float or None
        Mean of -ln p over target tokens, teacher-forced and unsmoothed, and its exponential: of a word piece, as in
        Table 3.
    exact_match : float
        Percent of outputs that equal their reference.
    sentences : int
    decoding : str or None
        The search, such as "beam 4, alpha 0.6".
    truncated_sources : int or None
        How many were longer than the model was given; None if none may be cut.
    seconds : float or None
        Of the whole evaluation.
    """

    step: int | None = None
    split: str
    averaged_checkpoints: int | None = None
    checkpoint: str | None = None
    test_set: str | None = None
    target_lang: str | None = None
    nll: float | None = None
    perplexity: float | None = None
    exact_match: float
    sentences: int
    decoding: str | None = None
    truncated_sources: int | None = None
    seconds: float | None = None

    # Fields that stand in every row, with null where they do not apply.
    always: ClassVar[tuple[str, ...]] = ()

    def to_row(self) -> dict[str, Any]:
        """Return what JSON can hold, without the fields that do not apply."""
        kept = {*self.always, *(() if self.checkpoint is None else WEIGHTS)}
        return {name: value for name, value in asdict(self).items() if value is not None or name in kept}

    def scores(self) -> list[str]:
        """Say the scores in words."""
        raise NotImplementedError

    def summary(self) -> str:
        """Say in a line what an evaluation of a model was on, and what came of it."""
        said = [
            *self.scores(),
            f"exact {self.exact_match:.1f}%",
            f"nll {self.nll:.3f}",
            f"{self.sentences:,} sentences in {self.seconds:.0f} s",
            f"{self.decoding}",
        ]
        if (self.averaged_checkpoints or 1) > 1:
            said.append(f"{self.averaged_checkpoints} checkpoints averaged")
        if self.truncated_sources:
            said.append(f"{self.truncated_sources} translated up to max_source_length")
        return f"{self.split} at {self.checkpoint}: {', '.join(said)}"


@dataclass(frozen=True, kw_only=True)
class TranslationEvaluation(Evaluation):
    """An evaluation of translations.

    Attributes
    ----------
    sacrebleu, sacrebleu_lowercased, chrf : float
        By today's protocol, with their signatures.
    paper_bleu, paper_bleu_without_split : float or None
        By the paper's, with its signature; None where it is left out.
    comparison : dict or None
        With a baseline: the result of `scoring.significance.compare`.
    """

    sacrebleu: float
    sacrebleu_lowercased: float
    chrf: float
    paper_bleu: float | None
    paper_bleu_without_split: float | None
    sacrebleu_signature: str
    chrf_signature: str
    paper_bleu_signature: str | None
    comparison: dict[str, dict[str, float]] | None = None

    always = ("paper_bleu", "paper_bleu_without_split", "paper_bleu_signature")

    def scores(self) -> list[str]:
        """Say the scores of both protocols."""
        said = [
            f"sacreBLEU {self.sacrebleu:.2f} (lowercased {self.sacrebleu_lowercased:.2f})",
            f"chrF {self.chrf:.2f}",
        ]
        return said + ([] if self.paper_bleu is None else [f"BLEU by the paper's protocol {self.paper_bleu:.2f}"])


@dataclass(frozen=True, kw_only=True)
class ParsingEvaluation(Evaluation):
    """An evaluation of parses, by EVALB's rules (`parsing.evalb`), after what is no tree was repaired.

    Attributes
    ----------
    bracketing_recall, bracketing_precision, bracketing_f1, tagging_accuracy : float
        In percent; `exact_match` is that of all brackets of a sentence.
    average_crossing, no_crossing, two_or_less_crossing : float
        Crossing brackets a sentence, and percent of sentences with none and with at most two.
    evalb_errors : int
        Sentences that EVALB would not compare; no other figure counts them.
    well_formed : float or None
        Percent of outputs that were trees before any repair; None where trees are given.
    bracketing_f1_by_length : dict
        F1, and the number of sentences, by words of a sentence.
    """

    bracketing_recall: float
    bracketing_precision: float
    bracketing_f1: float
    tagging_accuracy: float
    average_crossing: float
    no_crossing: float
    two_or_less_crossing: float
    evalb_errors: int
    well_formed: float | None = None
    bracketing_f1_by_length: dict[str, dict[str, float]]

    def scores(self) -> list[str]:
        """Say EVALB's scores."""
        said = [
            f"F1 {self.bracketing_f1:.2f} (recall {self.bracketing_recall:.2f}, "
            f"precision {self.bracketing_precision:.2f})",
            f"tags {self.tagging_accuracy:.1f}%",
            f"well-formed {self.well_formed:.1f}%",
        ]
        return said + ([f"{self.evalb_errors} left out by EVALB"] if self.evalb_errors else [])
