"""Where an evaluation that was made after a run is noted: in the run's metrics.jsonl, and in the model card."""

import json
import re
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .card import add_to_card
from .errors import UserError, first_line
from .results import Evaluation


try:
    import fcntl
except ModuleNotFoundError:  # as on Windows
    fcntl = None

CHECKPOINT = re.compile(r"step-(\d+)(-|$)")  # the name of a checkpoint's folder, which may end in a note


def describe_weights(model: str) -> dict[str, Any]:
    """Say which weights a model folder holds: those of which update, and the average of how many checkpoints.

    Returns
    -------
    dict
        `step`, `averaged_checkpoints` and `checkpoint` of an `Evaluation`; the first two None where not known.
    """
    folder = Path(model)
    name = folder.resolve().name  # "." has none
    checkpoint = CHECKPOINT.match(name)
    if checkpoint:
        return {"step": int(checkpoint[1]), "averaged_checkpoints": 1, "checkpoint": name}
    last: dict[str, Any] = {}
    for row in read_metrics(metrics_of(folder)):
        last |= {} if is_recorded(row) else row
    known = {field: last.get(field) for field in ("step", "averaged_checkpoints")}
    return known | {"checkpoint": name if folder.exists() else model}


def metrics_of(folder: Path) -> Path:
    """Return the metrics of the run that a model folder or checkpoint is of, or else those in the folder."""
    for run in (folder.resolve().parent, folder.resolve().parent.parent):
        if (run / "metrics.jsonl").exists() and (run / "recipe.toml").exists():
            return run / "metrics.jsonl"
    return folder / "metrics.jsonl"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics, except lines that are not whole, as a process that was killed may leave them."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # there are none, or they may not be read
        return []
    return [row for row in map(read_row, lines) if row is not None]


def read_row(line: str) -> dict[str, Any] | None:
    """Return a row of metrics, or None if the line is not whole."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        return None
    return row if isinstance(row, dict) else None


def is_recorded(row: dict[str, Any]) -> bool:
    """Tell whether a row is an evaluation that was made after a run, not by the run itself."""
    return row.get("test_set") is not None


def card_of(folder: Path) -> Path:
    """Return the card of a model folder."""
    return folder / "README.md"


def record(evaluation: Evaluation, model: str) -> str:
    """Add an evaluation to the metrics and to the card of a local model.

    Returns
    -------
    str
        A sentence that says where it was recorded, or that the model is no folder.

    Raises
    ------
    UserError
        If the metrics cannot be written, or the card cannot be read or written.
    """
    folder = Path(model)
    if not folder.is_dir():
        return f"Not recorded: {model} is no folder."
    metrics, card = metrics_of(folder), card_of(folder)
    try:
        _append(metrics, json.dumps(evaluation.to_row(), ensure_ascii=False))
    except OSError as error:
        raise UserError(
            f"the evaluation cannot be recorded in {metrics}: {error.strerror} (--no_record does without)"
        ) from error
    if not card.exists():
        return f"Recorded in {metrics}"
    try:
        with _alone(metrics):  # a card is read, changed and replaced
            add_to_card(evaluation, card)
    except Exception as error:  # depending on what stands in a card, the libraries raise half a dozen kinds
        raise UserError(
            f"the evaluation is recorded in {metrics}, but cannot be in {card}: {first_line(error)}"
        ) from error
    return f"Recorded in {metrics} and {card}"


@contextmanager
def _alone(path: Path) -> Generator[None, None, None]:
    """Keep other processes out of such a block for the same file, waiting for one that is in it."""
    with path.open("ab") as file:
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _append(path: Path, line: str) -> None:
    """Add a line, also behind one that is not whole."""
    with path.open("ab+") as file:
        size = file.tell()
        file.seek(max(0, size - 1))
        start = b"" if file.read() in (b"", b"\n") else b"\n"
        file.write(start + line.encode() + b"\n")
