"""The flags of `vaswani evaluate`, and which of them go together."""

import argparse
from collections.abc import Iterable
from pathlib import Path

from vaswani.errors import UserError
from vaswani.models.trees_vaswani import TREES
from vaswani.parsing.treebank import PREFIX
from vaswani.record import card_of, metrics_of
from vaswani.scoring.protocols import moses_languages

from .shared.flags import (
    add_batch_flags,
    add_decoding_flags,
    add_engine_flag,
    add_ensemble_flag,
    add_model_flags,
    add_torch_flags,
    at_least_one,
    check_torch_flags,
)
from .shared.outputs import check_outputs


DEFAULT_LANGUAGE = "de"
# What holds where a flag is not given. The parser says None then, so that `check` sees what was given.
DEFAULTS = {"split": "test", "engine": "torch", "dtype": "auto", "max_batch_tokens": 4096}
# Flags that only --model and --baseline_model have a use for.
OF_MODELS = (
    "num_beams", "length_penalty_alpha", "max_new_tokens", "min_new_tokens", "max_batch_tokens", "workers",
    "torch_compile", "engine", "tokenizer", "device", "dtype",
)  # fmt: skip


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add all flags of the command."""
    what = parser.add_argument_group("what to score: one of these")
    what.add_argument("--model", metavar="DIR_OR_HUB_ID", help="a model, which translates the sources")
    what.add_argument("--hypothesis", metavar="FILE", help="translations, a sentence a line, as plain text")
    text = parser.add_argument_group("on which text: a dataset, or files of a sentence a line")
    text.add_argument(
        "--dataset_name", help="a dataset of the Hub, a local folder in its layout, or a folder of trees: treebank:DIR"
    )
    text.add_argument("--dataset_config_name", help="the dataset's configuration, such as 'de-en'")
    text.add_argument("--split", help="the dataset's split (default: test)")
    text.add_argument("--source", metavar="FILE", help="what to translate")
    text.add_argument("--reference", metavar="FILE", help="its translation by people")
    text.add_argument("--source_lang", help="the dataset's column of sources (default: the model's language)")
    text.add_argument(
        "--target_lang",
        help="language of the references, for the dataset and for Moses' tokenizer: one of "
        f"{', '.join(moses_languages())}; or {TREES}, for parses (default: the model's, or the ending of --reference, "
        f"or {DEFAULT_LANGUAGE})",
    )
    text.add_argument("--max_samples", type=at_least_one, metavar="N", help="only the first N sentences")
    how = parser.add_argument_group("how")
    how.add_argument("--lowercase", action="store_true", help="score without regard to case, as is usual for Multi30k")
    how.add_argument(
        "--tokenized",
        action="store_true",
        help="all text was tokenized before, as by training/preprocess.py: count its tokens as they are",
    )
    how.add_argument(
        "--unconstrained",
        action="store_true",
        help="let a parser write whatever it finds likely, and repair it, instead of nothing but trees",
    )
    how.add_argument("--baseline_hypothesis", metavar="FILE", help="translations to compare with")
    how.add_argument(
        "--baseline_model",
        metavar="DIR_OR_HUB_ID",
        help="a model to compare with, which translates without --shortlist",
    )
    add_ensemble_flag(how)
    add_engine_flag(how)
    add_decoding_flags(how)
    add_batch_flags(how)
    add_torch_flags(how)
    add_model_flags(how)
    out = parser.add_argument_group("what becomes of it")
    out.add_argument("--json", nargs="?", const="-", metavar="FILE", help="write JSON to FILE, or instead of the text")
    out.add_argument("--output", metavar="FILE", help="write the translations there")
    out.add_argument(
        "--no_record", dest="record", action="store_false", help="leave metrics.jsonl and the model card alone"
    )
    parser.set_defaults(**dict.fromkeys(DEFAULTS))


def check(options: argparse.Namespace) -> None:
    """Refuse flags that do not go together or are of no use, and outputs that cannot be written."""
    if (options.model is None) == (options.hypothesis is None):
        raise UserError("exactly one of model and hypothesis must be given: what is judged?")
    if options.baseline_hypothesis is not None and options.baseline_model is not None:
        raise UserError("at most one of baseline_hypothesis and baseline_model can be given")
    check_models(options)
    check_text(options)
    check_files(options)


def check_models(options: argparse.Namespace) -> None:
    """Refuse flags of models where there is none, and those of torch where another engine computes."""
    unused: list[str] = []
    if options.model is None:  # a baseline is translated by torch, without a shortlist
        unused += ["shortlist"] if options.engine in (None, "torch") else ["shortlist", "engine"]
    if options.model is None and options.baseline_model is None:
        unused += OF_MODELS
    for flag in given(options, unused):
        raise UserError(f"{flag} is for a model: a hypothesis has been written already")
    check_torch_flags(options)
    if options.ensemble is not None and options.model is None:
        raise UserError(f"ensemble={options.ensemble!r} is for model, which is not given")


def check_text(options: argparse.Namespace) -> None:
    """Refuse no text or two, a model that has nothing to translate, and flags that are for another kind of text."""
    name = options.dataset_name
    if (options.reference is None) == (name is None):
        raise UserError("exactly one of reference and dataset_name must be given: what is scored against?")
    if options.target_lang != TREES and ".mrg" not in str(options.reference):  # which may be trees
        check_has_source(options)
    if name is None:
        for flag in given(options, ("dataset_config_name", "split", "source_lang")):
            raise UserError(f"{flag} is for a dataset, but dataset_name is not given")
        return
    for flag in given(options, ("source",)):
        raise UserError(f"{flag} is for files, but dataset_name={name!r} is given")
    if is_treebank(options):
        for flag in given(options, ("dataset_config_name", "source_lang")):
            raise UserError(f"{flag} is for other datasets, but dataset_name={name!r} is a treebank")


def check_has_source(options: argparse.Namespace) -> None:
    """Refuse a model that has nothing to translate."""
    translates = options.model is not None or options.baseline_model is not None
    if translates and options.dataset_name is None and options.source is None:
        raise UserError("source is missing: a model needs something to translate")


def check_files(options: argparse.Namespace) -> None:
    """Refuse to write what cannot be written, or what is read or recorded."""
    names = "source", "reference", "hypothesis", "baseline_hypothesis"
    others = {f"{name}={getattr(options, name)!r}": getattr(options, name) for name in names}
    if options.model is not None and Path(options.model).is_dir():
        folder = Path(options.model)
        others |= {"the model's metrics": str(metrics_of(folder)), "the model's card": str(card_of(folder))}
    outputs = {"json": None if options.json == "-" else options.json, "output": options.output}
    check_outputs(outputs, {what: path for what, path in others.items() if path is not None})


def given(options: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """Name those of some flags that were given, with their values where these are more than that."""
    values = {name: getattr(options, name) for name in names}
    return [
        name if value is True else f"{name}={value!r}"
        for name, value in values.items()
        if value is not None and value is not False
    ]


def fill_in_defaults(options: argparse.Namespace) -> None:
    """Give the flags their defaults that were not given."""
    for name, default in DEFAULTS.items():
        if getattr(options, name) is None:
            setattr(options, name, default)


def is_treebank(options: argparse.Namespace) -> bool:
    """Say whether the text is a folder of trees."""
    return options.dataset_name is not None and options.dataset_name.startswith(PREFIX)


def check_is_plain(options: argparse.Namespace) -> None:
    """Refuse what is for translations alone."""
    for name in ("lowercase", "tokenized", "baseline_hypothesis", "baseline_model", "shortlist"):
        if getattr(options, name):
            raise UserError(f"{name} is for translations, but target_lang={TREES!r}")
    if options.source is not None:
        raise UserError("source must be left out where the references are trees: these hold the words")
    if options.unconstrained and options.model is None:
        raise UserError("unconstrained is for a model: a hypothesis has been written already")
