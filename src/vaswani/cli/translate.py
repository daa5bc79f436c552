"""Translate text, a sentence a line, from a file or pipe into a file or pipe.

  vaswani translate --model runs/demo/model --input news.en --output news.de
  zcat web.en.gz | vaswani translate --model me/my-model --num_beams 4 --device cuda | gzip > web.de.gz
  vaswani translate --model runs/demo/model --input news.en --output news.de --resume

A line in is a line out, in the same order; empty lines stay empty. Only a line feed ends a line: any other character,
control characters included, is text. Of CR LF the carriage return is dropped; what is written ends in LF alone. Text
is UTF-8.

Lines are read ahead, sorted by length, translated in batches of --max_batch_tokens and written in order. Lines from
a pipe are translated as soon as they arrive, so that it may be endless, or somebody who types.

On a CPU the batches are shared out to --workers, processes that share the model's memory; a single batch is translated
by all cores together.

After a signal or kill -9 the output holds whole lines; the same command with --resume translates the others.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from vaswani.errors import UserError
from vaswani.models.trees_vaswani import TREES

from .shared import line_by_line
from .shared.flags import (
    add_batch_flags,
    add_decoding_flags,
    add_engine_flag,
    add_ensemble_flag,
    add_model_flags,
    add_torch_flags,
    at_least_one,
    check_torch_flags,
    decoding,
)
from .shared.startup import large_imports


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add all flags of the command."""
    parser.add_argument("--model", required=True, metavar="DIR_OR_HUB_ID", help="a published model")
    line_by_line.add_file_flags(parser, "translate")
    add_ensemble_flag(parser)
    add_engine_flag(parser)
    add_decoding_flags(parser)
    add_batch_flags(parser)
    add_torch_flags(parser)
    parser.add_argument(
        "--n_best",
        type=at_least_one,
        metavar="K",
        help="write the K best translations of each line, one after the other, the best first (at most --num_beams)",
    )
    parser.add_argument(
        "--scores",
        action="store_true",
        help="put before each translation its score and a tab: the log-probability over the length penalty, by "
        "which the beam search ranks; for --num_beams 1 the log-probability itself",
    )
    line_by_line.add_reading_flags(parser)
    add_model_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Translate, and return the exit status."""
    check_torch_flags(options)
    with ExitStack() as stack:
        return line_by_line.run(options, lambda: translator(options, stack), "Translating", group=options.n_best or 1)


def translator(options: argparse.Namespace, stack: ExitStack) -> line_by_line.Worker:
    """Load the model; return what translates lines with it until the stack is closed, and who does that."""
    with large_imports():
        from transformers.utils.logging import disable_progress_bar

        from vaswani.shortlists.shortlist import Shortlist
        from vaswani.workers import choose_workers, describe_workers

        from .shared.loading import load_model
    disable_progress_bar()  # transformers' own, at loading
    model, tokenizer = load_model(options)
    if getattr(model.config, "target_lang", None) == TREES:
        raise UserError(f"model={options.model!r} is a parser: vaswani parse is for it")
    arguments = search_arguments(model, options)
    if options.engine != "torch":  # which shares out each batch to the cores by itself
        return line_translator(model, tokenizer, options, arguments, stack), str(model)
    workers = choose_workers(options.workers, model.device)
    check_memory = line_by_line.memory_check(
        model, tokenizer, arguments, options, with_scores=options.scores, workers=workers
    )
    if options.shortlist:
        arguments = arguments | {"shortlist": Shortlist.load(options.model, tokenizer).allowed}
    translate_lines = line_translator(model, tokenizer, options, arguments | {"workers": workers}, stack)

    def work(sentences: Sequence[str], on_batch: Callable[[int], object]) -> list[str]:
        check_memory(sentences)
        return translate_lines(sentences, on_batch)

    return work, describe_workers(workers, model)


def line_translator(
    model: Any, tokenizer: Any, options: argparse.Namespace, arguments: dict[str, Any], stack: ExitStack
) -> line_by_line.Work:
    """Return what makes lines of sentences, until the stack is closed; `arguments` are those of `Translator`.

    When it is closed, it says how many translations were empty, if any.
    """
    from vaswani.translation import Translator

    total = empty = 0

    def say_how_many_are_empty() -> None:
        if empty:
            hint = "with several beams, a search may end at once, unless --min_new_tokens=1 rules that out"
            print(f"warning: {empty:,} of {total:,} translations are empty: {hint}", file=sys.stderr)

    how = {"max_batch_tokens": options.max_batch_tokens, "with_scores": options.scores}
    stack.callback(say_how_many_are_empty)
    translate = stack.enter_context(Translator(model, tokenizer, **how, **arguments))

    def work(sentences: Sequence[str], on_batch: Callable[[int], object]) -> list[str]:
        nonlocal total, empty
        results = translate(sentences, on_batch)
        given = [best.text for sentence, (best, *_) in zip(sentences, results, strict=True) if sentence.strip()]
        total, empty = total + len(given), empty + sum(not text.strip() for text in given)
        return [line for hypotheses in results for line in as_lines(hypotheses)]

    return work


def search_arguments(model: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of ``generate()``; refuse more translations than beams."""
    wanted, beams = options.n_best or 1, options.num_beams or model.generation_config.num_beams or 1
    if wanted > beams:
        raise UserError(f"--n_best={wanted} must be at most --num_beams={beams}")
    return decoding(options) | {"num_return_sequences": wanted}  # whatever the model's settings say


def as_lines(hypotheses: Sequence[tuple[str, float | None]]) -> list[str]:
    """Write the translations of one sentence, each with its score or None, as they stand in the output."""
    return [text if score is None else f"{score:.4f}\t{text}" for text, score in hypotheses]
