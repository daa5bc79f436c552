"""What the commands that train many runs have in common: flags, those of run.py for all runs, folder and report."""

import argparse
import json
import shlex
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from training.machine import usable_cores
from training.recipe import NAMES, describe_unknown, names_of
from training.settings import DataSettings, ModelSettings
from training.tables.layout import for_terminal
from training.trainer.run_directory import make_output_dir, own
from vaswani.errors import UserError
from vaswani.files import write_text
from vaswani.models.trees_vaswani import TREES


# Flags of run.py that each of them sets itself, and why.
SET_BY_ALL = dict.fromkeys(("resume_from_checkpoint", "overwrite_output_dir"), "the same command resumes")


def parse(
    parser: argparse.ArgumentParser, name: str, arguments: list[str], set_by_the_table: dict[str, str]
) -> tuple[argparse.Namespace, list[str]]:
    """Add the flags that all have, and read those of the parser; return the others, which are those of run.py.

    Parameters
    ----------
    parser : ArgumentParser
        Knows the table's own flags.
    name : str
        Of the command, such as "table2".
    arguments : list of str
    set_by_the_table : dict of str to str
        Settings of run.py that the table sets itself, with the reason.

    Raises
    ------
    UserError
        If a flag is unknown or set by the table, or a value of ours is not allowed.
    """
    parser.add_argument("--jobs", type=int, default=default_jobs(), help="runs at a time (default: one a GPU, or one)")
    parser.add_argument(
        "--output_dir",
        type=Path,
        default=Path("runs", name),
        help="a folder for each run, and the report (default: %(default)s)",
    )
    parser.add_argument("--list", action="store_true", help="print what would be trained, and train nothing")
    options, flags = parser.parse_known_args(arguments)
    check_run_flags(flags, vars(options), SET_BY_ALL | set_by_the_table)
    options.command = shlex.join(["python", f"training/{name}.py", *arguments])
    return options, flags


def check_starts_anew(model: ModelSettings) -> None:
    """Refuse a recipe that starts from a published model: runs that are compared begin with new weights."""
    if model.model_name_or_path is not None:
        raise UserError(
            f"model_name_or_path={model.model_name_or_path!r} must not stand in the recipe: all runs begin with new "
            "weights"
        )


def check_translates(data: DataSettings) -> None:
    """Refuse runs that learn to parse, where translations are scored."""
    if data.target_lang == TREES:
        raise UserError(
            f"target_lang={TREES!r} must be a language, since translations are scored: training/table4.py is for "
            "parsers"
        )


def check_run_flags(flags: Iterable[str], own: Iterable[str], set_by_the_table: Mapping[str, str]) -> None:
    """Refuse flags that run.py does not know, or that the table sets itself; `own` are the table's."""
    for name in names_of(flags):
        if name not in NAMES:
            raise UserError(describe_unknown("flag", f"--{name}", [*own, *NAMES]))
        if name in set_by_the_table:
            raise UserError(f"--{name} is no flag of the whole table: {set_by_the_table[name]}")


def check_origin(origin: Mapping[str, int | str], folder: Path) -> None:
    """Note in a folder of texts what they are made of, such as checksums, or refuse what differs from that."""
    path = folder / "origin.json"
    noted = json.loads(path.read_text(encoding="utf-8")) if path.exists() else origin
    if noted != origin:
        differing = ", ".join(name for name in {**origin, **noted} if origin.get(name) != noted.get(name))
        raise UserError(
            f"{folder} holds texts of other data (other {differing}): choose another output_dir, or remove it"
        )
    write_text(path, json.dumps(origin))


@contextmanager
def reporting(options: argparse.Namespace, report: str) -> Generator[None, None, None]:
    """Keep others out of the output directory while it is worked in, and print the report that is there at the end.

    Raises
    ------
    UserError
        If there is no room for so many jobs, or the directory cannot be written to or is in use.
    """
    check_jobs(options.jobs)
    disable_progress_bar()
    with own(make_output_dir(options.output_dir)):
        yield
    print(for_terminal((options.output_dir / report).read_text(encoding="utf-8")))


def default_jobs() -> int:
    """Return how many runs to train at a time: one for each GPU, or one that has all cores."""
    return max(1, torch.cuda.device_count())


def check_jobs(jobs: int) -> None:
    """Refuse a number of jobs that this machine has no room for."""
    room = torch.cuda.device_count() or usable_cores()
    if not 1 <= jobs <= room:
        raise UserError(f"jobs={jobs} must be at least 1 and at most {room}, the GPUs or cores of this machine")
