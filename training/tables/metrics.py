"""What a run has logged in its `metrics.jsonl`, read."""

import json
from collections.abc import Iterable
from pathlib import Path


def read_metrics(directory: Path) -> list[dict]:
    """Return the rows that a run has logged, except a last one that is not whole yet."""
    path = directory / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def logged_updates(directory: Path) -> list[dict]:
    """Return the rows of a run's updates."""
    return [row for row in read_metrics(directory) if "target_tokens_per_second" in row]


def logged_evaluations(directory: Path, split: str) -> list[dict]:
    """Return the rows of a run's evaluations on a split; that of the published model is the last."""
    return [row for row in read_metrics(directory) if row.get("split") == split]


def seconds_of_training(updates: Iterable[dict]) -> float:
    """Return how long updates took, by their rows: without evaluations and checkpoints."""
    return sum(row["target_tokens"] / max(row["target_tokens_per_second"], 1e-9) for row in updates)
