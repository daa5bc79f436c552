"""Evaluations in a model card: its model-index, which the Hub reads, and its table, which people read."""

import re
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import EvalResult, ModelCard

from .files import write_text
from .results import Evaluation, ParsingEvaluation, TranslationEvaluation


LIKELIHOOD = {"perplexity": ("perplexity", "perplexity of a word piece, teacher-forced", None)}
# Type and name of each metric, and which signature it has.
TRANSLATION_METRICS = {
    "sacrebleu": ("bleu", "BLEU (sacreBLEU)", "sacrebleu_signature"),
    "chrf": ("chrf", "chrF (sacreBLEU)", "chrf_signature"),
    "paper_bleu": ("bleu", "BLEU (the paper's protocol: tokenized, compounds split)", "paper_bleu_signature"),
    "paper_bleu_without_split": (
        "bleu",
        "BLEU (the paper's protocol without splitting compounds)",
        "paper_bleu_signature",
    ),
} | LIKELIHOOD
PARSING_METRICS = {
    "bracketing_f1": ("f1", "labelled bracketing F1 (EVALB)", None),
    "bracketing_recall": ("recall", "labelled bracketing recall (EVALB)", None),
    "bracketing_precision": ("precision", "labelled bracketing precision (EVALB)", None),
    "tagging_accuracy": ("accuracy", "tagging accuracy (EVALB)", None),
} | LIKELIHOOD
END_OF_TABLE = "<!-- Further evaluations are added above this line. -->"


def eval_results(
    evaluation: Evaluation,
    languages: Sequence[str],
    text: str,
    dataset: str | None = None,
    config: str | None = None,
) -> list[EvalResult]:
    """Return the entries of an evaluation in the model-index: one for each metric, with how it was made.

    Parameters
    ----------
    evaluation : Evaluation
    languages : sequence of str
        Source and target.
    text : str
        Name of the text for people.
    dataset, config : str or None, default=None
        Its name on the Hub, if it has one, and its configuration.
    """
    row, is_parsing = evaluation.to_row(), isinstance(evaluation, ParsingEvaluation)
    names = ("sentences", "decoding", "checkpoint", "averaged_checkpoints")
    how = {name: row[name] for name in names if row.get(name) is not None}
    return [
        EvalResult(
            task_type="token-classification" if is_parsing else "translation",
            task_name="Constituency parsing" if is_parsing else f"Translation {'-'.join(languages)}",
            dataset_type=dataset or "custom",
            dataset_name=text,
            dataset_config=config,
            dataset_split=evaluation.split,
            metric_type=metric,
            metric_name=label,
            metric_value=row[name],
            metric_args=({"signature": row[signature]} if signature else {}) | how,
        )
        for name, (metric, label, signature) in (PARSING_METRICS if is_parsing else TRANSLATION_METRICS).items()
        if row.get(name) is not None
    ]


def table_row(evaluation: Evaluation, text: str) -> str:
    """Return an evaluation as a line of the card's table of results."""
    averaged = evaluation.averaged_checkpoints or 1
    weights = f"average of the last {averaged} checkpoints" if averaged > 1 else evaluation.checkpoint or "the last"
    cells = [text, f"{evaluation.sentences:,}", f"{evaluation.decoding}; {weights}"]
    cells += ["-" if score is None else str(score) for score in _scores(evaluation)]
    cells += [f"{evaluation.exact_match}%", f"{evaluation.nll} ({evaluation.perplexity})"]
    if isinstance(evaluation, TranslationEvaluation):
        signature = evaluation.sacrebleu_signature.replace("|", r"\|")
        cells.append(f"`{signature}`")
    return f"| {' | '.join(cells)} |"


def _scores(evaluation: Evaluation) -> tuple[float | None, ...]:
    """Return the scores in the order of the table's columns."""
    if isinstance(evaluation, ParsingEvaluation):
        return (
            evaluation.bracketing_f1,
            evaluation.bracketing_recall,
            evaluation.bracketing_precision,
            evaluation.tagging_accuracy,
            evaluation.well_formed,
        )
    assert isinstance(evaluation, TranslationEvaluation)
    return (
        evaluation.sacrebleu,
        evaluation.sacrebleu_lowercased,
        evaluation.chrf,
        evaluation.paper_bleu,
        evaluation.paper_bleu_without_split,
    )


def add_to_card(evaluation: Evaluation, path: Path) -> None:
    """Add a later evaluation to a card: to its table, and to its model-index."""
    card = ModelCard.load(path)
    known = card.data.language or evaluation.target_lang
    languages = [str(language) for language in (known if isinstance(known, list) else [known])]
    text = evaluation.test_set or evaluation.split
    # Results of one type, configuration and split are one entry, so the whole name must be part of these.
    of_dataset = re.fullmatch(r"(\S+) \((.+)\)", text)
    dataset, config = of_dataset.groups() if of_dataset else (text.replace(" ", "-"), None)
    results = eval_results(evaluation, languages, text, dataset, config)
    card.data.eval_results = [*(card.data.eval_results or []), *results]
    card.data.model_name = card.data.model_name or path.parent.resolve().name
    if END_OF_TABLE in card.text:
        line = table_row(evaluation, f"{text}, {evaluation.split}")
        card.text = card.text.replace(END_OF_TABLE, f"{line}\n{END_OF_TABLE}")
    write_text(path, str(card))
