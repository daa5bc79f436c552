"""Checkpoints: written whole or not at all, verified before they are used, and averaged as in section 6.1.

A checkpoint is a folder that loads like a published model. Beside the weights it holds the optimizer's tensors, the
state of the run as JSON, and the SHA-256 of every file. Nothing is pickled.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import PreTrainedModel

from vaswani.errors import UserError


WEIGHTS, OPTIMIZER, STATE, CHECKSUMS = "model.safetensors", "optimizer.safetensors", "state.json", "checksums.json"
UNFINISHED, SET_ASIDE = ".unfinished-", "set-aside-"


def save_checkpoint(
    directory: Path,
    step: int,
    model: PreTrainedModel,
    optimizer: dict[str, torch.Tensor],
    state: dict[str, Any],
    note: str = "",
) -> Path:
    """Save a run as ``directory/step-NNNNNNN``, under a temporary name until all of it is on the disk.

    Parameters
    ----------
    directory : Path
        Holds the checkpoints of one run.
    step : int
        Optimizer updates done.
    model : PreTrainedModel
    optimizer : dict of str to Tensor
    state : dict
        All else that resuming needs; must be JSON.
    note : {"", "interrupted", "best"}, default=""
        Why the checkpoint is saved outside the schedule; part of its name.

    Returns
    -------
    Path

    Raises
    ------
    UserError
        If it cannot be written, as on a full disk. Earlier checkpoints stay as they are.
    """
    name = f"step-{step:07}" + (f"-{note}" if note else "")
    unfinished, folder = directory / f"{UNFINISHED}{name}", directory / name
    try:
        for abandoned in directory.glob(f"{UNFINISHED}*"):  # by a process that was killed
            shutil.rmtree(abandoned)
        model.save_pretrained(unfinished)
        save_file({name: tensor.contiguous().cpu() for name, tensor in optimizer.items()}, unfinished / OPTIMIZER)
        (unfinished / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
        sums = {path.name: _sha256(path) for path in sorted(unfinished.iterdir())}
        (unfinished / CHECKSUMS).write_text(json.dumps(sums, indent=1), encoding="utf-8")
        for path in (*unfinished.iterdir(), unfinished):
            _sync(path)
        if folder.exists():
            set_aside(folder)
        unfinished.rename(folder)
        _sync(directory)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise UserError(
            f"the checkpoint of step {step} could not be saved in {directory}: {error}. "
            f"{len(list_checkpoints(directory))} earlier ones are intact; make room, then resume"
        ) from error
    return folder


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def list_checkpoints(directory: Path, note: str | None = None) -> list[Path]:
    """Return the checkpoints of a run, oldest first; with `note`, only those that have it ("": the schedule's)."""
    folders = [path for path in directory.glob("step-*") if path.is_dir()]
    return sorted(path for path in folders if note is None or _note(path) == note)


def _note(folder: Path) -> str:
    return folder.name.removeprefix("step-").partition("-")[2]


def step_of(folder: Path) -> int:
    """Return the step of a checkpoint."""
    return int(folder.name.split("-")[1])


def prune(directory: Path, total_limit: int | None) -> None:
    """Remove superfluous checkpoints.

    These are the schedule's beyond the newest `total_limit` (None keeps all), interrupted ones before the schedule's
    newest or beyond as many, and all but the newest of the best.
    """
    scheduled = list_checkpoints(directory, "")
    newest = scheduled[-1].name if scheduled else ""
    superfluous = scheduled[:-total_limit] if total_limit else []
    interrupted = list_checkpoints(directory, "interrupted")
    beyond = interrupted[:-total_limit] if total_limit else []
    superfluous += [folder for folder in interrupted if folder.name < newest or folder in beyond]
    superfluous += list_checkpoints(directory, "best")[:-1]
    for folder in superfluous:
        shutil.rmtree(folder)


def set_aside(folder: Path) -> Path:
    """Rename a checkpoint so that the run ignores it but nothing is lost; return its new path."""
    place, number = folder.with_name(f"{SET_ASIDE}{folder.name}"), 1
    while place.exists():
        number += 1
        place = folder.with_name(f"{SET_ASIDE}{folder.name}-{number}")
    return folder.rename(place)


def damage(folder: Path) -> str | None:
    """Return how a checkpoint is damaged, a file missing or different from its checksum; None if it is good."""
    try:
        sums = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
        for name in (WEIGHTS, OPTIMIZER, STATE):
            if name not in sums:
                return f"{CHECKSUMS} does not name {name}"
        for name, expected in sums.items():
            if _sha256(folder / name) != expected:
                return f"{name} differs from its checksum"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, AttributeError) as error:
        return f"{CHECKSUMS} cannot be read: {error}"
    return None


def find_checkpoint(directory: Path, which: str) -> tuple[Path | None, dict[Path, str]]:
    """Find the checkpoint to resume from.

    Parameters
    ----------
    directory : Path
        Holds the checkpoints of the run.
    which : str
        'latest' for the newest good one, or the path of one of them.

    Returns
    -------
    folder : Path or None
        None if 'latest' is wanted and there is none yet.
    superseded : dict of Path to str
        Newer ones, to be set aside before the run resumes, and why.

    Raises
    ------
    UserError
        If the path is no checkpoint of this run or a damaged one, or 'latest' finds only damaged ones.
    """
    folders = list_checkpoints(directory)
    superseded = {}
    if which == "latest":
        for folder in reversed(folders):
            problem = damage(folder)
            if problem is None:
                return folder, superseded
            superseded[folder] = f"is damaged ({problem})"
        if folders:
            raise UserError(
                f"none of the {len(folders)} checkpoints in {directory} is good: begin anew, with "
                "--overwrite_output_dir"
            )
        return None, superseded
    folder = check_checkpoint(directory, which)
    problem = damage(folder)
    if problem is not None:
        raise UserError(f"resume_from_checkpoint={which!r} is damaged ({problem}): 'latest' takes the newest good one")
    later = folders[folders.index(folder) + 1 :]
    return folder, dict.fromkeys(later, f"comes after {folder.name}")


def check_checkpoint(directory: Path, which: str) -> Path:
    """Return the checkpoint of a run that a path names, without reading it.

    Raises
    ------
    UserError
        If the run has no such checkpoint, naming those that it has.
    """
    known = {folder.resolve(): folder for folder in list_checkpoints(directory)}
    folder = known.get(Path(which).resolve())
    if folder is None:
        is_published = (Path(which) / "recipe.toml").is_file() and not (Path(which) / STATE).exists()
        reason = ", for it holds what was published, which may be an average" if is_published else ""
        names = ", ".join(path.name for path in known.values()) or "none yet"
        raise UserError(
            f"resume_from_checkpoint={which!r} cannot be resumed{reason}: it must be 'latest' or a checkpoint in "
            f"{directory} ({names})"
        )
    return folder


def read_state(folder: Path) -> dict[str, Any]:
    """Return the state that `save_checkpoint` was given."""
    return json.loads((folder / STATE).read_text(encoding="utf-8"))


def average_checkpoints(folders: Sequence[Path]) -> dict[str, torch.Tensor]:
    """Average the weights of checkpoints, one tensor at a time.

    Parameters
    ----------
    folders : sequence of Path
        Checkpoints of one model.

    Returns
    -------
    dict of str to Tensor
        Means, computed in float64, in the types of the first checkpoint.

    Raises
    ------
    ValueError
        If there are none, or one holds other tensors than the first.
    """
    if not folders:
        raise ValueError("there is no checkpoint to average")
    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(folder / WEIGHTS, framework="pt")) for folder in folders]
        names = sorted(files[0].keys())
        for folder, file in zip(folders, files, strict=True):
            if sorted(file.keys()) != names:
                raise ValueError(f"the checkpoint {folder} holds other tensors than {folders[0]}")
        averages = {}
        for name in names:
            first = files[0].get_tensor(name)
            total = first.double()
            for file in files[1:]:
                total += file.get_tensor(name)
            averages[name] = (total / len(files)).to(first.dtype)
    return averages
