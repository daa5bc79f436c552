"""The model that the flags of a command name, in whichever library computes."""

import argparse
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from vaswani.translation import load


def load_model(options: argparse.Namespace) -> tuple[Any, PreTrainedTokenizerBase]:
    """Load the model and its tokenizer, by the flags of `add_model_flags` and what there is of others.

    Raises
    ------
    UserError
        If they cannot be loaded in this way.
    """
    flags = vars(options)
    where, engine = (options.model, options.tokenizer, options.device, options.dtype), flags.get("engine", "torch")
    if engine == "torch":
        # cuDNN plans its attention for each shape anew, and every batch has another: on an H200 it took 46 ms instead
        # of 3 to encode 32 sentences.
        torch.backends.cuda.enable_cudnn_sdp(False)
        return load(*where, torch_compile=flags.get("torch_compile", False))
    from vaswani.interop.engines import load_engine  # with libraries that are an extra

    return load_engine(engine, *where, flags.get("workers"))
