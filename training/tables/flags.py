"""Values of flags: numbers, shares, and names of a table's rows."""

import argparse
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from training.recipe import describe_unknown
from training.settings import TrainingSettings
from vaswani.errors import UserError


Choice = TypeVar("Choice")
Number = TypeVar("Number", int, float)


def above_zero(text: str) -> float:
    """Parse a number above 0."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0")
    return number


def share(text: str) -> float:
    """Parse a share of a whole."""
    number = float(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0 and at most 1")
    return number


def check_shares(shares: Iterable[float], count: int, of: str) -> None:
    """Refuse shares of `count` pairs or trees, which `of` names, that leave none of them."""
    for each in shares:
        if round(each * count) < 1:
            raise UserError(f"shares: {each:g} must leave at least one of {count:,} {of}")


def numbers(kind: Callable[[str], Number], least: float = -math.inf) -> Callable[[str], list[Number]]:
    """Return what parses numbers of a kind, such as `int`, with commas between: in their order, each once."""

    def parse(text: str) -> list[Number]:
        try:
            found = [kind(part) for part in text.split(",")]
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} must be numbers with commas between") from error
        if min(found) < least:
            raise argparse.ArgumentTypeError(f"{text!r} must be numbers of at least {least}")
        return list(dict.fromkeys(found))

    return parse


def choose(flag: str, names: str, known: Mapping[str, Choice]) -> list[Choice]:
    """Return what a flag such as "rows" names, in the order of `known`: "base,A-h1" these two, "all" everything.

    Raises
    ------
    UserError
        If a name is unknown, with the nearest known one, or there is none.
    """
    wanted = list(known) if names == "all" else [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in known:
            raise UserError(f"{describe_unknown(flag.removesuffix('s'), name, known)}; known are {', '.join(known)}")
    if not wanted:
        raise UserError(f"{flag} must name at least one of {', '.join(known)}, or be 'all'")
    return [choice for name, choice in known.items() if name in wanted]


def flags_of_a_length(steps: int, recipe: TrainingSettings, given: Iterable[str]) -> list[str]:
    """Return the flags of a run of `steps` updates: logged and saved often enough to show progress and to resume."""
    names = ("logging_steps", "save_steps")
    often = {name: min(recipe.values()[name], max(1, steps // 20)) for name in names}
    return [f"--max_steps={steps}", *(f"--{name}={value}" for name, value in often.items() if name not in given)]
