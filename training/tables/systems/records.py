"""The facts of Table 2: what each finished run cost and reached, and how sure the difference to the Transformer is.

The names of the fields are the columns of ``table2.csv``.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from training.tables.metrics import logged_evaluations, logged_updates, seconds_of_training, tokens_until
from training.tables.sweep import Run
from training.tables.systems.catalogue import BASELINE
from training.tables.systems.plan import Entry, Plan
from training.tables.systems.translations import Decoding
from vaswani.scoring.lengths import Bucket, bleu_of, buckets
from vaswani.scoring.protocols import is_known, score
from vaswani.scoring.references import EvaluationSet
from vaswani.scoring.significance import compare


@dataclass(frozen=True)
class Point:
    """BLEU on validation, greedy, after this many training FLOPs."""

    flops: float
    bleu: float


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes
    ----------
    search_flops, training_flops : float
        Of the search for its learning rate, by all its runs; of the run itself.
    training_seconds : float
        Of its updates, without evaluations and checkpoints.
    perplexity : float
        On the text that is scored, of a word piece, teacher-forced.
    paper_bleu, sacrebleu : float
        By both protocols; the first is None where the paper's tokenizer does not know the language.
    minus_baseline, paper_minus_baseline : float or None
        BLEU less that of the Transformer with the same seed, by both protocols; None for the Transformer.
    p_value, paper_p_value : float or None
        Of that difference, by paired bootstrap resampling.
    """

    system: str
    seed: int
    parameters: int
    flops_per_target_token: float
    learning_rate_factor: float
    search_flops: float
    max_steps: int
    target_tokens: int
    training_flops: float
    training_seconds: float
    training_tokens_per_second: float
    perplexity: float
    paper_bleu: float | None
    sacrebleu: float
    minus_baseline: float | None
    p_value: float | None
    paper_minus_baseline: float | None
    paper_p_value: float | None
    decoding_seconds: float
    decoding_tokens_per_second: float


@dataclass(frozen=True)
class Table:
    """All that was measured.

    Attributes
    ----------
    results : list of Result
    curves : dict of str to list of Point
        By system, of the first seed.
    parts : list of Bucket
    bleu_by_length : dict of str to list of float
        By system: for each bucket the mean over seeds.
    signatures : dict of str to str
        Of the BLEU protocols.
    """

    results: list[Result]
    curves: dict[str, list[Point]]
    parts: list[Bucket]
    bleu_by_length: dict[str, list[float]]
    signatures: dict[str, str]

    def of(self, system: str) -> list[Result]:
        """Return the results of a system, one a seed."""
        return [result for result in self.results if result.system == system]


def collect(
    plan: Plan, text: EvaluationSet, decodings: Mapping[str, Decoding], target_lang: str, tokenized: bool = False
) -> Table:
    """Collect what the finished runs have measured.

    Parameters
    ----------
    plan : Plan
    text : EvaluationSet
        That was translated.
    decodings : mapping of str to Decoding
        By the name of the run.
    target_lang, tokenized
        As for `scoring.protocols.score`; of a language that Moses does not know, the paper's protocol is left out.
    """
    known = target_lang if is_known(target_lang) else None
    scored_as = {"target_lang": known, "tokenized": tokenized}
    parts = buckets(text.sources or [])
    results, curves, by_length = [], {}, {}
    for entry in plan.entries:
        finished = [run for run in entry.runs if run.name in decodings]
        results += [_result(entry, run, text, decodings, scored_as) for run in finished]
        if finished:
            name, first = entry.system.name, finished[0]
            curves[name] = _curve(entry, first)
            found = [decodings[run.name].translations for run in finished]
            by_length[name] = [
                statistics.fmean(bleu_of(part, translations, text.references, **scored_as) for translations in found)
                for part in parts
            ]
    scores = score(text.references, text.references, **scored_as)
    signatures = {name: scores[f"{name}_signature"] for name in ("sacrebleu", "paper_bleu")}
    return Table(results, curves, parts, by_length, {name: text for name, text in signatures.items() if text})


def _result(
    entry: Entry, run: Run, text: EvaluationSet, decodings: Mapping[str, Decoding], scored_as: dict[str, Any]
) -> Result:
    rows, decoding, settings = logged_updates(run.directory), decodings[run.name], run.settings
    tokens = target_tokens(run)
    final = logged_evaluations(run.directory, text.split)[-1]
    scores = score(decoding.translations, text.references, **scored_as)
    seed, baseline = settings.optimization.seed, decodings.get(f"{BASELINE}-{settings.optimization.seed}")
    against: dict[str, dict[str, Any]] = {}
    if baseline is not None and entry.system.name != BASELINE:
        against = compare(decoding.translations, baseline.translations, text.references, **scored_as)
    today, paper = against.get("sacrebleu", {}), against.get("paper_bleu", {})
    return Result(
        system=entry.system.name,
        seed=seed,
        parameters=entry.parameters,
        flops_per_target_token=entry.flops_per_target_token,
        learning_rate_factor=settings.optimization.learning_rate_factor,
        search_flops=sum(target_tokens(tried) for tried in entry.search.values()) * entry.flops_per_target_token,
        max_steps=settings.optimization.max_steps,
        target_tokens=tokens,
        training_flops=tokens * entry.flops_per_target_token,
        training_seconds=round(seconds_of_training(rows), 1),
        training_tokens_per_second=statistics.median(row["target_tokens_per_second"] for row in rows),
        perplexity=final["perplexity"],
        paper_bleu=scores["paper_bleu"],
        sacrebleu=scores["sacrebleu"],
        minus_baseline=today.get("difference"),
        p_value=today.get("bootstrap_p_value"),
        paper_minus_baseline=paper.get("difference"),
        paper_p_value=paper.get("bootstrap_p_value"),
        decoding_seconds=decoding.seconds,
        decoding_tokens_per_second=round(decoding.tokens / decoding.seconds, 1),
    )


def _curve(entry: Entry, run: Run) -> list[Point]:
    """Return BLEU after each evaluation on the way."""
    updates, rows = logged_updates(run.directory), logged_evaluations(run.directory, "validation")
    return [
        Point(tokens_until(row["step"], updates) * entry.flops_per_target_token, row["sacrebleu"])
        for row in rows
        if row["decoding"] == "greedy"
    ]


def target_tokens(run: Run) -> int:
    """Return the target tokens that a run was trained on."""
    return sum(row["target_tokens"] for row in logged_updates(run.directory))


def means(results: Sequence[Result], name: str) -> float | None:
    """Return the mean of a figure over seeds; None where it is not known."""
    values = [getattr(result, name) for result in results]
    return None if not values or None in values else statistics.fmean(values)
