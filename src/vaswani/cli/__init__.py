"""The console command ``vaswani``: one file for each of its subcommands, imported when it is asked for."""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from keyword import iskeyword
from typing import Any, NamedTuple, NoReturn

from vaswani.errors import UserError, missing_package
from vaswani.interruption import Interrupted, Interruption

from .shared.startup import large_imports


class Command(NamedTuple):
    """A subcommand: the group that it is listed in, a line about it, and the extra whose packages it needs."""

    group: str
    summary: str
    extra: str | None = None


COMMANDS = {
    "translate": Command("Use a model", "translate a file or a pipe, a sentence a line"),
    "parse": Command("Use a model", "parse a file or a pipe, a sentence a line, with a model trained on trees"),
    "attention": Command("Use a model", "show what a model attends to, as a page or figures"),
    "demo": Command("Use a model", "translate in the browser, or write a Space for the Hugging Face Hub", "demo"),
    "export": Command(
        "Use a model", "write a model for MarianMT of transformers, CTranslate2 or ONNX Runtime", "export"
    ),
    "import": Command("Use a model", "make a model of ours from MarianMT, FSMT or tensor2tensor", "export"),
    "shortlist": Command("Use a model", "make the file by which --shortlist translates faster", "score"),
    "evaluate": Command("Score a model", "score a model or translations, as the paper did and as today", "score"),
}


class Parser(argparse.ArgumentParser):
    """A parser of ours: complaints are one sentence, flags are written in full, help keeps its lines."""

    def __init__(self, **settings: Any):
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def error(self, message: str) -> NoReturn:
        """Raise what `exit_status` prints."""
        raise UserError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``vaswani <command> ...`` and return its exit status."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        return exit_status(lambda: print(overview()))
    return exit_status(lambda: run(*arguments))


def exit_status(work: Callable[[], int | None]) -> int:
    """Do the work of a command and return its exit status, or 1 for an error, or 128 + the signal that ended it.

    Error and signal are told in a sentence. Work that ends in its own way at a signal returns its own status. Nothing
    is said where whoever reads has had enough, as `head` has.
    """
    try:
        with Interruption():
            try:
                status = work() or 0
            except SystemExit:  # as --help ends
                print(end="", flush=True)
                raise
            print(end="", flush=True)
        return status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes what is left when it ends
        return 1
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Interrupted as signal:
        print(f"\nEnded ({signal}) before the work was done", file=sys.stderr)
        return 128 + (signal.number or 0)


def overview() -> str:
    """List the commands, grouped, a line each."""
    lines = [
        "usage: vaswani COMMAND ...",
        "",
        "The original Transformer: use a trained model, and score it.",
    ]
    for group in dict.fromkeys(command.group for command in COMMANDS.values()):
        lines += ["", group]
        lines += [f"  {name:10}  {command.summary}" for name, command in COMMANDS.items() if command.group == group]
    return "\n".join([*lines, "", "vaswani COMMAND --help says everything about a command, with examples."])


def run(name: str, *arguments: str) -> int:
    """Run a command.

    Raises
    ------
    UserError
        If there is no such command, a package is missing that it needs, or its flags are wrong.
    """
    if name not in COMMANDS:
        raise UserError(f"command {name!r} must be one of {', '.join(COMMANDS)}")
    try:
        with large_imports():
            # "import" may name a command, but no module.
            command = importlib.import_module(f"{__name__}.{name}_" if iskeyword(name) else f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        raise missing_package(f"vaswani {name}", error.name, str(COMMANDS[name].extra)) from error
    parser = Parser(prog=f"vaswani {name}", description=command.__doc__)
    command.add_flags(parser)
    return command.run(parser.parse_args(arguments))
