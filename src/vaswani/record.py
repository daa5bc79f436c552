"""Where an evaluation that was made after a run is noted: in the run's metrics.jsonl, and in the model card."""

import json
from pathlib import Path
from typing import Any

from .card import add_to_card
from .results import Evaluation


def describe_weights(model: str) -> dict[str, Any]:
    """Say which weights a model folder holds: those of which update, and the average of how many checkpoints.

    Returns
    -------
    dict
        `step`, `averaged_checkpoints` and `checkpoint` of an `Evaluation`; the first two None where not known.
    """
    folder = Path(model)
    if folder.name.startswith("step-"):
        return {"step": int(folder.name.split("-")[1]), "averaged_checkpoints": 1, "checkpoint": folder.name}
    last: dict[str, Any] = {}
    for row in _rows(metrics_of(folder)):
        last |= row
    names = "step", "averaged_checkpoints"
    return {name: last.get(name) for name in names} | {"checkpoint": folder.name if folder.exists() else model}


def metrics_of(folder: Path) -> Path:
    """Return the metrics of the run that a model folder or checkpoint is of, or else those in the folder."""
    for run in (folder.resolve().parent, folder.resolve().parent.parent):
        if (run / "metrics.jsonl").exists() and (run / "recipe.toml").exists():
            return run / "metrics.jsonl"
    return folder / "metrics.jsonl"


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def record(evaluation: Evaluation, model: str) -> str:
    """Add an evaluation to the metrics and to the card of a local model.

    Returns
    -------
    str
        A sentence that says where it was recorded, or why not.
    """
    folder = Path(model)
    if not folder.is_dir():
        return f"Not recorded: {model} is no folder."
    metrics, card = metrics_of(folder), folder / "README.md"
    try:
        with metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(evaluation.to_row(), ensure_ascii=False) + "\n")
        if card.exists():
            add_to_card(evaluation, card)
    except OSError as error:
        return f"Not recorded: {error}"
    return f"Recorded in {metrics}" + (f" and {card}" if card.exists() else "")
