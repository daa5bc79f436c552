"""The libraries that can compute in torch's place."""

from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from transformers import PreTrainedTokenizerBase

from vaswani.errors import UserError, first_line
from vaswani.translation import load_tokenizer

from .ctranslate2 import load_ctranslate2
from .onnx import load_onnx


LOADERS = {"ctranslate2": load_ctranslate2, "onnxruntime": load_onnx}


def load_engine(
    engine: str,
    name: str,
    tokenizer_name: str | None = None,
    device: str | None = None,
    dtype: str = "auto",
    workers: int | None = None,
) -> tuple[Any, PreTrainedTokenizerBase]:
    """Open a folder that `vaswani export` wrote, for `translation.translate`.

    Parameters
    ----------
    engine : str
        "ctranslate2" or "onnxruntime".
    name : str
        The folder, or where it is on the Hub.
    tokenizer_name, device, dtype
        As for `translation.load`.
    workers : int or None, default=None
        Batches at the same time; None means as many as are fast.

    Returns
    -------
    model, tokenizer
        The model has ``generate()``, and says as a string who computes.

    Raises
    ------
    UserError
        If the engine is not installed, or cannot do this.
    """
    folder = name if Path(name).is_dir() else _downloaded(name)
    try:
        model = LOADERS[engine](Path(folder), device, dtype, workers)
    except (OSError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"model={name!r} is not whole: {first_line(error)}") from error
    return model, load_tokenizer(tokenizer_name or folder, model)


def _downloaded(name: str) -> str:
    """Return the folder into which the Hub's is downloaded."""
    try:
        return snapshot_download(name)
    except (OSError, ValueError) as error:  # the Hub's own errors are of both kinds
        raise UserError(
            f"model={name!r} must be a folder or a Hub id that can be reached: {first_line(error)}"
        ) from error
