"""The flags of a table: its own, and those of run.py that hold for all of its rows."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from training.recipe import NAMES, describe_unknown, names_of
from training.settings import TrainingSettings
from vaswani.errors import UserError


Choice = TypeVar("Choice")


def check_run_flags(flags: Iterable[str], own: Iterable[str], set_by_the_table: Mapping[str, str]) -> None:
    """Check the flags that are not the table's own.

    Parameters
    ----------
    flags : iterable of str
        As given, such as ``--seed=1``.
    own : iterable of str
        Names of the table's own flags.
    set_by_the_table : mapping of str to str
        Settings of run.py that the table sets itself, with the reason.

    Raises
    ------
    UserError
        If one is unknown, with the nearest known one, or is set by the table.
    """
    own = list(own)
    for name in names_of(flags):
        if name not in NAMES:
            raise UserError(describe_unknown("flag", f"--{name}", [*own, *NAMES]))
        if name in set_by_the_table:
            raise UserError(f"--{name} is no flag of the whole table: {set_by_the_table[name]}")


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


def numbers(name: str, text: str, kind: type) -> list:
    """Read numbers with commas between.

    Raises
    ------
    UserError
        If there is none, or one is no such number.
    """
    try:
        found = [kind(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise UserError(f"{name}={text!r} must be numbers with commas between") from error
    if not found:
        raise UserError(f"{name}={text!r} must hold at least one number")
    return list(dict.fromkeys(found))
