"""The model that the flags of a command name, in whichever library computes."""

import argparse
from typing import Any

from transformers import PreTrainedTokenizerBase

from vaswani.translation import load


def load_model(options: argparse.Namespace) -> tuple[Any, PreTrainedTokenizerBase]:
    """Load the model and its tokenizer, by the flags of `add_model_flags`, `add_engine_flag` and, if any, others.

    Raises
    ------
    UserError
        If they cannot be loaded in this way.
    """
    where = options.model, options.tokenizer, options.device, options.dtype
    if options.engine == "torch":
        return load(*where, torch_compile=vars(options).get("torch_compile", False))
    from vaswani.interop.engines import load_engine  # with libraries that are an extra

    return load_engine(options.engine, *where, vars(options).get("workers"))
