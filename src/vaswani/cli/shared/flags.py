"""Flags that several commands have, and their types, which say which values are allowed."""

import argparse
import math
from typing import Any

from vaswani.errors import UserError


MOST_ALPHA = 10  # that of models/decoding_vaswani.py, which imports torch


def at_least_one(text: str) -> int:
    """Parse a whole number of at least 1."""
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)


def alpha(text: str) -> float:
    """Parse alpha of the length penalty."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not abs(number) <= MOST_ALPHA:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number from {-MOST_ALPHA} to {MOST_ALPHA}, such as 0.6")
    return number


def add_model_flags(parser: argparse._ActionsContainer) -> None:
    """Add the flags for the tokenizer, the device and the precision of a model."""
    parser.add_argument("--tokenizer", metavar="DIR_OR_HUB_ID", help="where the tokenizer is, if not in --model")
    parser.add_argument("--device", help="such as cpu or cuda:1 (default: an accelerator where there is one)")
    parser.add_argument(
        "--dtype",
        default="auto",
        choices=["auto", "float32", "bfloat16", "float16", "int8"],
        help="precision to compute in (default: the one that the model was saved in); int8 is the fastest on a CPU",
    )


def add_engine_flag(parser: argparse._ActionsContainer) -> None:
    """Add the flag for the library that computes."""
    parser.add_argument(
        "--engine",
        default="torch",
        choices=["torch", "ctranslate2", "onnxruntime"],
        help="what computes (default: torch); the others take what `vaswani export` wrote",
    )


def add_ensemble_flag(parser: argparse._ActionsContainer) -> None:
    """Add the flag for models that translate together with the first."""
    parser.add_argument(
        "--ensemble",
        nargs="+",
        metavar="DIR_OR_HUB_ID",
        help="further models of the same vocabulary: the probability of a token is the mean over them and --model",
    )


def add_decoding_flags(parser: argparse._ActionsContainer) -> None:
    """Add the flags of the search; those not given are left to the model's generation_config.json."""
    parser.add_argument(
        "--num_beams",
        type=at_least_one,
        metavar="N",
        help="beams; 1 is greedy search (default: the model's; the paper: 4, to parse 21)",
    )
    parser.add_argument(
        "--length_penalty_alpha",
        type=alpha,
        metavar="A",
        help="alpha of the paper's length penalty ((5 + length) / 6)^alpha (default: the model's; the paper: 0.6, to "
        "parse 0.3)",
    )
    parser.add_argument(
        "--max_new_tokens",
        type=at_least_one,
        metavar="N",
        help="longest output in tokens (default: those of the source and as many more as the model says; the paper: "
        "50, to parse 300)",
    )
    parser.add_argument(
        "--min_new_tokens",
        type=at_least_one,
        metavar="N",
        help="shortest output in tokens, </s> not counted; 1 rules out empty ones (the paper: none)",
    )


def add_batch_flags(parser: argparse._ActionsContainer) -> None:
    """Add the flags for the size of a batch, and for the number of processes that share batches out."""
    parser.add_argument(
        "--max_batch_tokens",
        type=at_least_one,
        default=4096,
        metavar="N",
        help="source tokens of a batch, padding included; bounds memory (default: 4096)",
    )
    parser.add_argument(
        "--workers",
        type=at_least_one,
        metavar="N",
        help="processes that share the model's memory and compute with one thread each, at most as many as there are "
        "cores (default: one for each thread that PyTorch would use, such as OMP_NUM_THREADS says; 1 on a GPU)",
    )


def add_torch_flags(parser: argparse._ActionsContainer) -> None:
    """Add the flags that `check_torch_flags` checks."""
    parser.add_argument(
        "--shortlist",
        action="store_true",
        help="write each batch with likely translations of its words and frequent tokens alone: faster, but some "
        "translations change, also with what else is in the batch (`vaswani shortlist` makes the file)",
    )
    parser.add_argument(
        "--torch_compile",
        action="store_true",
        help="compile what lies between the matrix products of a Transformer on a CPU: with --dtype int8 the fastest, "
        "above all in greedy search, after a few seconds, the first time about ten; needs a C++ compiler. On a GPU, "
        "steps are recorded as CUDA graphs in any case",
    )


def check_torch_flags(options: argparse.Namespace) -> None:
    """Refuse flags that are for torch alone where another library computes."""
    for name in ("ensemble", "shortlist", "torch_compile"):
        if options.engine not in (None, "torch") and getattr(options, name):
            raise UserError(f"{name} is for engine 'torch', not for {options.engine!r}")


def decoding(options: argparse.Namespace) -> dict[str, Any]:
    """Return the flags for ``generate()`` that were given.

    Raises
    ------
    UserError
        If the shortest translation would be longer than the longest.
    """
    names = ("num_beams", "length_penalty_alpha", "max_new_tokens", "min_new_tokens")
    least, most = options.min_new_tokens, options.max_new_tokens
    if least is not None and most is not None and least > most:
        raise UserError(f"min_new_tokens={least} must be at most max_new_tokens={most}")
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}
