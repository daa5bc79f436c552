"""The libraries that can compute in torch's place."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import snapshot_download
from transformers import PreTrainedTokenizerBase

from vaswani.errors import UserError, first_line, not_found
from vaswani.loading import load_tokenizer

from .companions import CONFIG
from .ctranslate2 import MODEL, load_ctranslate2
from .onnx import DECODER, ENCODER, load_onnx


class Engine(NamedTuple):
    """The format of `vaswani export` that a library reads, the files without which it has no model, and its loader."""

    format: str
    files: tuple[str, ...]
    load: Callable[..., Any]


ENGINES = {
    "ctranslate2": Engine("ctranslate2", (CONFIG, MODEL), load_ctranslate2),
    "onnxruntime": Engine("onnx", (CONFIG, ENCODER, DECODER), load_onnx),
}


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
        As for `vaswani.loading.load`.
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
    folder, chosen = name if Path(name).is_dir() else _downloaded(name), ENGINES[engine]
    if not all((Path(folder) / file).is_file() for file in chosen.files):
        raise UserError(
            f"model={name!r} must be a folder that `vaswani export --format {chosen.format}` wrote, for engine "
            f"{engine!r}"
        )
    try:
        model = chosen.load(Path(folder), device, dtype, workers)
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
        raise not_found(name, error) from error
