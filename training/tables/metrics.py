"""What a run has logged in its `metrics.jsonl`, read."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from vaswani.record import is_recorded, read_metrics


def logged_updates(directory: Path) -> list[dict]:
    """Return the rows of a run's updates."""
    return [row for row in read_metrics(directory / "metrics.jsonl") if "target_tokens_per_second" in row]


def logged_evaluations(directory: Path, split: str) -> list[dict]:
    """Return the rows of a run's own evaluations on a split; that of the published model is the last."""
    rows = read_metrics(directory / "metrics.jsonl")
    return [row for row in rows if row.get("split") == split and not is_recorded(row)]


def seconds_of_training(updates: Iterable[dict]) -> float:
    """Return how long updates took, by their rows: without evaluations and checkpoints.

    A row has no rate if all its updates were skipped; of a run that was resumed, since then.
    """
    rates = ((row["target_tokens"], row["target_tokens_per_second"]) for row in updates)
    return sum(tokens / rate for tokens, rate in rates if rate)


def tokens_until(step: int, updates: Sequence[dict]) -> int:
    """Return the target tokens of a run up to a step; within a row of its log, the same number for each update."""
    tokens, before = 0.0, 0
    for row in updates:
        share = min(1.0, (step - before) / (row["step"] - before))
        tokens += max(0.0, share) * row["target_tokens"]
        before = row["step"]
    return round(tokens)
