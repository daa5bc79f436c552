"""The console command ``vaswani``: one file for each of its subcommands."""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from vaswani.errors import UserError

from . import translate


COMMANDS = {"translate": translate}


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are one sentence, as all of ours."""

    def error(self, message: str) -> NoReturn:
        """Raise what `main` prints."""
        raise UserError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``vaswani <command> ...`` and return its exit status: 0, 1 for an error, 128 + the signal that ended it."""
    parser = Parser(prog="vaswani", description="The original Transformer: what can be done with a trained model.")
    parser.set_defaults(run=None)
    subparsers = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
    for name, command in COMMANDS.items():
        subparser = subparsers.add_parser(
            name,
            help=command.SUMMARY,
            description=command.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.add_flags(subparser)
        subparser.set_defaults(run=command.run)
    try:
        options = parser.parse_args(arguments)
        if options.run is None:
            parser.print_help()
            return 0
        return options.run(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
