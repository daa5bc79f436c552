"""From lines to lines: files or pipes, in windows, in order, to be resumed; for every command that works so."""

import argparse
import fcntl
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from tqdm.auto import tqdm

from vaswani.errors import UserError, WorkerEnded
from vaswani.interruption import Interrupted, Interruption
from vaswani.text.lines import count_lines, decode_line, read_windows, whole_lines, write_lines

from .flags import at_least_one


BAR = "{desc}: {percentage:3.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}]"
BAR_OF_A_PIPE = "{desc}: {n_fmt} [{elapsed}, {rate_noinv_fmt}]"

STANDARD = ("standard input", "standard output")
PATIENCE = 2.0  # seconds
HOW_TO_READ_IT = "(--replace_invalid reads such bytes as U+FFFD)"

# Turns lines into as many groups of lines, and calls back with the number of lines after each batch of them.
Work = Callable[[Sequence[str], Callable[[int], object]], list[str]]
# What does the work, and who that is, in words.
Worker = tuple[Work, str]


def add_file_flags(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the flags for input and output."""
    parser.add_argument("--input", metavar="FILE", help=f"text to {verb} (default: standard input)")
    parser.add_argument("--output", metavar="FILE", help="where to write (default: standard output)")
    parser.add_argument("--resume", action="store_true", help="resume after the lines that --output already holds")


def add_reading_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for how lines are read."""
    parser.add_argument(
        "--read_ahead", type=at_least_one, default=1024, metavar="N", help="lines to sort at a time (default: 1024)"
    )
    parser.add_argument(
        "--replace_invalid", action="store_true", help="read bytes that are not UTF-8 as U+FFFD, instead of refusing"
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def memory_check(
    model: Any, tokenizer: Any, arguments: Mapping[str, Any], options: argparse.Namespace, **how: Any
) -> Callable[[Sequence[str]], None]:
    """Return a function that warns if the sentences of its first call, the first window, need too much memory.

    Arguments are those of ``generate()``; `how` has further fields of `Forecast`.
    """
    from vaswani.memory import Forecast  # which imports torch

    forecast, is_due = Forecast(model, arguments, **how), True

    def check(sentences: Sequence[str]) -> None:
        nonlocal is_due
        said = forecast.shortage(tokenizer, sentences, options.max_batch_tokens) if is_due else None
        is_due = False
        if said is not None:
            tqdm.write(f"warning: {said}", file=sys.stderr)  # not into the progress bar

    return check


def run(options: argparse.Namespace, prepare: Callable[[], Worker], doing: str, group: int = 1) -> int:
    """Turn all lines that the output does not hold yet into others, and return the exit status.

    Parameters
    ----------
    options : Namespace
        With the flags of `add_file_flags` and `add_reading_flags`.
    prepare : callable
        Returns what does the work, and who that is, once the input has been looked through.
    doing : str
        What the progress bar says, such as "Translating".
    group : int, default=1
        Lines out for each line in.

    Raises
    ------
    UserError
        If a file cannot be read or written, --resume does not fit the files, or a worker was killed.
    """
    if options.resume and options.output is None:
        raise UserError("--resume needs --output: it resumes after the lines that this file holds")
    whole = "the output holds whole lines"
    whole += "; the same command with --resume does the others" if options.output else ""
    try:
        with Interruption() as interruption:
            work_through(options, prepare, doing, group, interruption)
    except WorkerEnded as error:
        raise UserError(f"{error}: {whole}") from error
    except Interrupted as signal:
        print(f"\nEnded ({signal}): {whole}", file=sys.stderr)
        return 128 + (signal.number or 0)
    except BrokenPipeError:  # whoever reads has had enough, as `head` has
        return 1
    except OSError as error:
        raise UserError(f"{options.output or 'standard output'} cannot be written: {error.strerror}") from error
    return 0


def work_through(
    options: argparse.Namespace, prepare: Callable[[], Worker], doing: str, group: int, interruption: Interruption
) -> None:
    """Read, work and write, a window of lines at a time."""
    for standard, path in enumerate((options.input, options.output)):
        if path is None:
            check_is_open(standard)
    errors = "replace" if options.replace_invalid else "strict"
    total = None if options.input is None else count_input(options.input, errors)
    work, who = prepare()
    with ExitStack() as stack:
        source = open_descriptor(options.input, os.O_RDONLY, 0, stack)
        target = open_descriptor(options.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 1, stack)
        done = begin(options, total, group, source, target)
        if not options.quiet:
            print(f"{doing} with {who}", file=sys.stderr)
        progress = stack.enter_context(
            tqdm(
                desc=doing,
                unit=" sentences",
                total=total,
                initial=done,
                disable=options.quiet,
                bar_format=BAR_OF_A_PIPE if total is None else BAR,
            )
        )
        for sentences in read_sentences(source, options, done, errors):
            lines = work(sentences, progress.update)
            with interruption.deferred():
                write_lines(target, lines)


def count_input(path: str, errors: str) -> int | None:
    """Count the lines of the input, None for a pipe, once it is known to be text.

    Raises
    ------
    UserError
        If it is missing, a directory, compressed, cannot be read, or is not UTF-8 (with the line).
    """
    if path.endswith((".gz", ".bz2", ".xz", ".zst", ".zip")) and os.path.isfile(path):
        raise UserError(f"{path} is compressed: unpack it into a pipe instead, as zcat does, without --input")
    try:
        return count_lines(path, errors)
    except UserError as error:
        if isinstance(error.__cause__, UnicodeDecodeError):
            raise UserError(f"{error} {HOW_TO_READ_IT}") from error
        raise


def check_is_open(standard: int) -> None:
    """Refuse standard input or output that a shell has closed, before another file takes its number."""
    try:
        os.fstat(standard)
    except OSError as error:
        raise UserError(f"{STANDARD[standard]} cannot be opened: {error.strerror}") from error


def open_descriptor(path: str | None, how: int, standard: int, stack: ExitStack) -> int:
    """Open a file until the stack is closed, or take standard input or output where there is none.

    Raises
    ------
    UserError
        If it cannot be opened.
    """
    if path is None:
        return standard
    try:
        descriptor = os.open(path, how, 0o666)
    except OSError as error:
        raise UserError(f"{path} cannot be opened: {error.strerror}") from error
    stack.callback(os.close, descriptor)
    return descriptor


def begin(options: argparse.Namespace, total: int | None, group: int, source: int, target: int) -> int:
    """Cut the output off behind what it keeps: to resume its whole lines, else nothing; return how many are done.

    Parameters
    ----------
    options : Namespace
    total : int or None
        Lines of the input, if they can be counted.
    group : int
        Lines out for each line in.
    source, target : int
        File descriptors.

    Raises
    ------
    UserError
        If the output is the input, another process writes it, or it does not fit the input. It stays as it is.
    """
    is_file = stat.S_ISREG(os.fstat(target).st_mode)
    if options.resume and not is_file:
        raise UserError(f"--resume needs an output that is a file, which {options.output} is not")
    if is_file and os.path.sameopenfile(source, target):
        raise UserError(f"{options.output or STANDARD[1]} is the input too: choose another output")
    if options.output is None or not is_file:
        return 0
    lock(target, options.output)
    done, size = whole_lines(options.output, group) if options.resume else (0, 0)
    if total is not None and done > total:
        raise UserError(
            f"{options.output} has {done:,} lines but {options.input} has {total:,}: not what became of it"
        )
    os.ftruncate(target, size)
    return done


def lock(target: int, name: str) -> None:
    """Keep other processes that ask for it from an open file, until all that have it open close it or end.

    Raises
    ------
    UserError
        If another process keeps it; one that was killed may take a moment to end.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return fcntl.flock(target, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise UserError(
                    f"{name} is being written by another process: wait until that has ended, or choose another output"
                ) from error
            time.sleep(PATIENCE / 20)
        except OSError:  # a file system without locks
            return None


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
                raise UserError(f"{error} {HOW_TO_READ_IT}") from error
        yield sentences
