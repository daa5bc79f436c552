"""The libraries that can compute in torch's place."""

from typing import Any

from transformers import PreTrainedTokenizerBase

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
    name, tokenizer_name, device, dtype
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
    return LOADERS[engine](name, tokenizer_name, device, dtype, workers)
