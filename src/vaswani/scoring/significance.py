"""Whether one system is better than another or was only lucky with this test set: sacreBLEU's paired tests."""

from collections.abc import Sequence
from typing import Any

import sacrebleu
from sacrebleu.significance import PairedTest, Result

from vaswani.scoring.protocols import multi_bleu, prepare, todays_bleu


BOOTSTRAP_SAMPLES = 1000
RANDOMIZATION_TRIALS = 10_000


def compare(
    system: Sequence[str],
    baseline: Sequence[str],
    references: Sequence[str],
    target_lang: str | None = "de",
    lowercase: bool = False,
    tokenized: bool = False,
) -> dict[str, dict[str, Any]]:
    """Compare two systems by paired bootstrap resampling and by approximate randomization.

    Parameters
    ----------
    system, baseline, references : sequence of str
        One string per sentence: plain text, unless it is `tokenized`.
    target_lang, lowercase, tokenized
        As for `score`.

    Returns
    -------
    dict of str to dict
        For `sacrebleu` and, with a language, `paper_bleu`: the scores of `system` and `baseline`, their `difference`,
        `bootstrap_p_value`, `randomization_p_value` (both two-sided), and of each system the bootstrap's mean and half
        width of the 95% confidence interval.

    Notes
    -----
    The seed is sacreBLEU's, 12345 unless `SACREBLEU_SEED` says otherwise.
    """
    results = {"sacrebleu": _compare(todays_bleu(lowercase, tokenized, target_lang), system, baseline, references)}
    if target_lang is not None and not tokenized:
        sides = (prepare(side, target_lang, split=True) for side in (system, baseline, references))
        results["paper_bleu"] = _compare(multi_bleu(lowercase), *sides)
    return results


def _compare(
    metric: sacrebleu.BLEU, system: Sequence[str], baseline: Sequence[str], references: Sequence[str]
) -> dict[str, Any]:
    systems = [("baseline", list(baseline)), ("system", list(system))]

    def run(test: str, samples: int) -> list[Result]:
        """Return the results of the baseline and of the system."""
        return PairedTest(systems, {"BLEU": metric}, [list(references)], test, samples)()[1]["BLEU"]

    of_baseline, of_system = run("bs", BOOTSTRAP_SAMPLES)
    _, randomized = run("ar", RANDOMIZATION_TRIALS)
    # sacreBLEU counts the resamples that differ more than the systems do: equal ones would seem to differ. Of the 2^k
    # ways to swap k different sentences, two differ exactly as much, so that no p is smaller than 2^(1 - k).
    differ = of_baseline.score != of_system.score
    smallest = 2.0 ** (1 - sum(ours != theirs for ours, theirs in zip(system, baseline, strict=True)))
    row: dict[str, Any] = {"difference": of_system.score - of_baseline.score}
    for name, result in (("system", of_system), ("baseline", of_baseline)):
        row |= {name: result.score, f"{name}_mean": result.mean, f"{name}_confidence": result.ci}
    row |= {
        "bootstrap_p_value": of_system.p_value if differ else 1.0,
        "randomization_p_value": max(randomized.p_value, smallest) if differ else 1.0,
    }
    return {name: round(float(value), 4) for name, value in row.items()}
