"""The model that the flags of a command name, in whichever library computes."""

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from vaswani.ensemble import Ensemble
from vaswani.errors import UserError
from vaswani.loading import load


Loaded = tuple[Any, PreTrainedTokenizerBase]


def load_model(options: argparse.Namespace) -> Loaded:
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
        how = {"torch_compile": flags.get("torch_compile", False)}
        loaded, names = load(*where, **how), flags.get("ensemble") or []
        try:
            return join(*loaded, [(name, *load(name, *where[1:], **how)) for name in names]) if names else loaded
        except UserError as error:
            raise UserError(f"ensemble: {error}") from error
    from vaswani.interop.engines import load_engine  # with libraries that are an extra

    return load_engine(engine, *where, flags.get("workers"))


def join(model: Any, tokenizer: PreTrainedTokenizerBase, others: Sequence[tuple[str, Any, Any]]) -> Loaded:
    """Make an ensemble of a model and others, each with its name and its tokenizer, which must be the model's.

    Raises
    ------
    UserError
        If one of them has other tokens, or is no Transformer.
    """
    for name, _, their_tokenizer in others:
        if their_tokenizer.get_vocab() != tokenizer.get_vocab():
            raise UserError(f"model={name!r} has another vocabulary than the first: all must share one tokenizer")
    return Ensemble([model, *(other for _, other, _ in others)]), tokenizer
