"""Translate text, a sentence a line, from a file or pipe into a file or pipe.

  vaswani translate --model runs/demo/model --input news.en --output news.de
  zcat web.en.gz | vaswani translate --model me/my-model --num_beams 4 --device cuda | gzip > web.de.gz
  vaswani translate --model runs/demo/model --input news.en --output news.de --resume

A line in is a line out, in the same order; empty lines stay empty. Only a line feed ends a line: any other character,
control characters included, is text. Of CR LF the carriage return is dropped; what is written ends in LF alone. Text
is UTF-8.

Lines are read ahead, sorted by length, translated in batches of --max_batch_tokens and written in order. Lines from
a pipe are translated as soon as they arrive, so that it may be endless, or somebody who types.

After a signal or kill -9 the output holds whole lines; the same command with --resume translates the others.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from typing import Any

from tqdm.auto import tqdm
from transformers.utils.logging import disable_progress_bar

from vaswani.errors import UserError
from vaswani.interruption import Interrupted, Interruption
from vaswani.text.lines import count_lines, decode_line, keep_whole_lines, read_windows, write_lines
from vaswani.translation import Hypothesis, load, translate

from .flags import add_decoding_flags, add_model_flags, at_least_one, decoding


BAR = "{desc}: {percentage:3.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}]"
BAR_OF_A_PIPE = "{desc}: {n_fmt} [{elapsed}, {rate_noinv_fmt}]"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add all flags of the command."""
    parser.add_argument("--model", required=True, metavar="DIR_OR_HUB_ID", help="a published model")
    parser.add_argument("--input", metavar="FILE", help="text to translate (default: standard input)")
    parser.add_argument("--output", metavar="FILE", help="where to write (default: standard output)")
    parser.add_argument("--resume", action="store_true", help="resume after the lines that --output already holds")
    add_decoding_flags(parser)
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
    parser.add_argument(
        "--read_ahead", type=at_least_one, default=1024, metavar="N", help="lines to sort at a time (default: 1024)"
    )
    parser.add_argument(
        "--replace_invalid", action="store_true", help="read bytes that are not UTF-8 as U+FFFD, instead of refusing"
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    add_model_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Translate, and return the exit status."""
    if options.resume and options.output is None:
        raise UserError("--resume needs --output: it resumes after the lines that this file holds")
    try:
        with Interruption() as interruption:
            translate_lines(options, interruption)
    except Interrupted as signal:
        again = "; the same command with --resume translates the others" if options.output else ""
        print(f"\nEnded ({signal}): the output holds whole lines{again}", file=sys.stderr)
        return 128 + (signal.number or 0)
    except BrokenPipeError:  # whoever reads has had enough, as `head` has
        return 1
    except OSError as error:
        raise UserError(f"{options.output or 'standard output'} cannot be written: {error.strerror}") from error
    return 0


def translate_lines(options: argparse.Namespace, interruption: Interruption) -> None:
    """Load the model, and translate all lines that the output does not hold yet."""
    errors = "replace" if options.replace_invalid else "strict"
    total = None if options.input is None else count_lines(options.input, errors)
    disable_progress_bar()  # transformers' own, at loading
    model, tokenizer = load(options.model, options.tokenizer, options.device, options.dtype)
    arguments = decoding(options) | ({} if options.n_best is None else {"num_return_sequences": options.n_best})
    check_n_best(model, arguments)
    done, source, target = open_files(options, total)
    with tqdm(
        desc="Translating",
        unit=" sentences",
        total=total,
        initial=done,
        disable=options.quiet,
        bar_format=BAR_OF_A_PIPE if total is None else BAR,
    ) as progress:
        for sentences in read_sentences(source, options, done, errors):
            translations = translate(
                model,
                tokenizer,
                sentences,
                max_batch_tokens=options.max_batch_tokens,
                with_scores=options.scores,
                on_batch=progress.update,
                **arguments,
            )
            with interruption.deferred():
                write_lines(target, [line for hypotheses in translations for line in as_lines(hypotheses)])


def check_n_best(model: Any, arguments: dict[str, Any]) -> None:
    """Refuse more translations than beams.

    Raises
    ------
    UserError
        Naming both numbers.
    """
    beams = arguments.get("num_beams") or model.generation_config.num_beams or 1
    wanted = arguments.get("num_return_sequences", 1)
    if wanted > beams:
        raise UserError(f"--n_best={wanted} must be at most --num_beams={beams}")


def open_files(options: argparse.Namespace, total: int | None) -> tuple[int, int, int]:
    """Open input and output; to resume, the output after its whole lines.

    Returns
    -------
    done : int
        Lines of the input whose translations the output holds.
    source, target : int
        File descriptors.

    Raises
    ------
    UserError
        If a file cannot be opened, or the output holds more lines than the input.
    """
    try:
        done = keep_whole_lines(options.output, options.n_best or 1) if options.resume else 0
        if total is not None and done > total:
            raise UserError(
                f"{options.output} has {done:,} lines but {options.input} has {total:,}: not its translation"
            )
        source = 0 if options.input is None else os.open(options.input, os.O_RDONLY)
        how = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if options.resume else os.O_TRUNC)
        return done, source, 1 if options.output is None else os.open(options.output, how, 0o666)
    except OSError as error:
        raise UserError(f"{error.filename} cannot be opened: {error.strerror}") from error


def read_sentences(source: int, options: argparse.Namespace, skip: int, errors: str) -> Iterator[list[str]]:
    """Yield the sentences to be translated together; at an invalid line, first those before it.

    Raises
    ------
    UserError
        If a line is not UTF-8.
    """
    number = skip
    for window in read_windows(source, options.read_ahead, skip):
        sentences = []
        for raw in window:
            number += 1
            try:
                sentences.append(decode_line(raw, options.input or "standard input", number, errors))
            except UserError as error:
                if sentences:
                    yield sentences
                raise UserError(f"{error} (--replace_invalid reads such bytes as U+FFFD)") from error
        yield sentences


def as_lines(hypotheses: list[Hypothesis]) -> list[str]:
    """Write the translations of one sentence as they stand in the output."""
    return [text if score is None else f"{score:.4f}\t{text}" for text, score in hypotheses]
