"""Models saved along the way, and their average: what the paper published (section 6.1)."""

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import PreTrainedModel


def save_checkpoint(model: PreTrainedModel, directory: Path, step: int, total_limit: int | None = None) -> Path:
    """Save a model as ``directory/step-NNNNNNN``, a folder that loads like a published one.

    Parameters
    ----------
    model : PreTrainedModel
    directory : Path
        Holds the checkpoints of one run.
    step : int
        Optimizer updates done.
    total_limit : int, default=None
        Keep only so many of the newest ones.
    """
    folder = directory / f"step-{step:07}"
    model.save_pretrained(folder)
    for old in list_checkpoints(directory)[: -total_limit if total_limit else 0]:
        shutil.rmtree(old)
    return folder


def list_checkpoints(directory: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first."""
    return sorted(directory.glob("step-*"))


def average_checkpoints(folders: Sequence[Path]) -> dict[str, torch.Tensor]:
    """Average the weights of checkpoints, one tensor at a time.

    Parameters
    ----------
    folders : sequence of Path
        Checkpoints of one model.

    Returns
    -------
    dict of str to Tensor
        Added up in float64, in the type of the first checkpoint.

    Raises
    ------
    ValueError
        If there are none, or they hold other tensors than the first.
    """
    if not folders:
        raise ValueError("there is no checkpoint to average")
    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(folder / "model.safetensors", framework="pt")) for folder in folders]
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
