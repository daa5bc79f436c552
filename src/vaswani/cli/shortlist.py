"""Make a shortlist of a model from its training text, for faster translation on a CPU.

  vaswani shortlist --model runs/mine/model --source my/train.en --target my/train.de
  vaswani shortlist --model runs/mine/model --dataset_name wmt/wmt14 --dataset_config_name de-en
  vaswani translate --model runs/mine/model --shortlist --input news.en --output news.de

It learns which tokens are likely translations of each source token (IBM Model 1), and writes them into the model's
folder as shortlist.safetensors. With --shortlist, `vaswani translate` and `vaswani evaluate` then compute, in each
batch, the probabilities of these and of the most frequent tokens alone.

That changes some translations: compare with `vaswani evaluate --model DIR --shortlist --baseline_model DIR ...`.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import datasets
from safetensors import SafetensorError
from tqdm.auto import tqdm
from transformers.utils.logging import disable_progress_bar

from vaswani.errors import UserError
from vaswani.loading import load
from vaswani.models.trees_vaswani import TREES
from vaswani.shortlists.alignment import CANDIDATES, align
from vaswani.shortlists.sampling import sample
from vaswani.shortlists.shortlist import Shortlist
from vaswani.text.hub import load_split
from vaswani.text.parallel import check_sides, read_aligned

from .shared.flags import at_least_one


ITERATIONS = 4


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add all flags of the command."""
    parser.add_argument("--model", required=True, metavar="DIR", help="the model's folder, which gets the file")
    text = parser.add_argument_group("from which text: a dataset, or two files of a sentence a line")
    text.add_argument("--dataset_name", help="a dataset of the Hub, or a local folder in its layout")
    text.add_argument("--dataset_config_name", help="the dataset's configuration, such as 'de-en'")
    text.add_argument("--split", help="the dataset's split (default: train)")
    text.add_argument("--source_lang", help="the dataset's column of sources (default: the model's language)")
    text.add_argument("--target_lang", help="the dataset's column of targets (default: the model's language)")
    text.add_argument("--source", metavar="FILE", help="sentences of the source language")
    text.add_argument("--target", metavar="FILE", help="their translations")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--per_source",
        type=at_least_one,
        default=50,
        metavar="N",
        help=f"candidates of a source token, at most {CANDIDATES} (default: 50)",
    )
    how.add_argument(
        "--frequent", type=at_least_one, default=200, metavar="N", help="tokens that are always allowed (default: 200)"
    )
    how.add_argument("--tokenizer", metavar="DIR_OR_HUB_ID", help="where the tokenizer is, if not in --model")
    how.add_argument("--quiet", action="store_true", help="show no progress")


def run(options: argparse.Namespace) -> int:
    """Read, encode, align, write, and say what the file holds."""
    check(options)
    disable_progress_bar()  # transformers' own, at loading
    if options.quiet:
        datasets.disable_progress_bars()
    model, tokenizer = load(options.model, options.tokenizer, device="cpu")
    if getattr(model.config, "target_lang", None) == TREES:
        raise UserError(f"model={options.model!r} is a parser: a shortlist is for translations")
    rows = read_text(options, model.config)
    with tqdm(total=len(rows), desc="Encoding", unit=" pairs", disable=options.quiet) as progress:
        pairs, counts = sample(tokenizer, rows, on_pairs=progress.update)
    total = ITERATIONS * len(pairs.source_lengths)
    with tqdm(total=total, desc="Aligning", unit=" pairs", disable=options.quiet) as progress:
        table = align(pairs, len(tokenizer), ITERATIONS, on_pairs=progress.update)
    shortlist = Shortlist.build(tokenizer, table, counts, options.per_source, options.frequent)
    share, types = shortlist.coverage(pairs)
    path = save(shortlist, options.model)
    print(
        f"Wrote {path}, learned from {len(pairs.source_lengths):,} of {len(rows):,} pairs. In the first of these, it "
        f"allows {types:,.0f} of {len(tokenizer):,} types a sentence, and {100 * share:.1f}% of the target tokens.",
        file=sys.stderr,
    )
    return 0


def check(options: argparse.Namespace) -> None:
    """Refuse flags that do not go together, a model in no folder, and more candidates than are kept."""
    if not Path(options.model).is_dir():
        raise UserError(f"model={options.model!r} must be a folder: the shortlist is written into it")
    if options.per_source > CANDIDATES:
        raise UserError(
            f"per_source={options.per_source} must be at most {CANDIDATES}: it learns of no more candidates"
        )
    files = [options.source, options.target]
    if (options.dataset_name is None) == (files == [None, None]):
        raise UserError("either dataset_name or source and target must be given: what is learned from?")
    if options.dataset_name is None and None in files:
        raise UserError("source and target must be given both: they are the two sides of a text")
    for name in ("dataset_config_name", "split", "source_lang", "target_lang"):
        if options.dataset_name is None and getattr(options, name) is not None:
            raise UserError(f"{name}={getattr(options, name)!r} is for a dataset, but dataset_name is not given")


def read_text(options: argparse.Namespace, config: Any) -> Any:
    """Return the text as a table with columns `source` and `target`."""
    source, target = (getattr(options, name) or getattr(config, name, None) for name in ("source_lang", "target_lang"))
    if options.dataset_name is None:
        check_sides([options.source, options.target], (source, target))
        return read_aligned(options.source, options.target)
    if not source or not target:
        raise UserError("source_lang and target_lang must be given: the model does not know its languages")
    split = options.split or "train"
    return load_split(options.dataset_name, options.dataset_config_name, split, (source, target))


def save(shortlist: Shortlist, folder: str) -> Path:
    """Write the file.

    Raises
    ------
    UserError
        If the folder cannot be written to.
    """
    try:
        return shortlist.save(folder)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"model={folder!r} cannot be written to: {reason}") from error
