"""Recipes and flags: where the settings of a run come from, and how they are written down.

A recipe is a TOML file of settings. Where it ``extends`` another recipe, it has the keys of that one too, unless it
gives its own. A flag on the command line wins. One that names another source of text, a tokenizer or a model to start
from also takes the place of all that a recipe says of the text, of the vocabulary, or of it and the config. "none"
takes a setting away that need not be given.
"""

import argparse
import copy
import dataclasses
import difflib
import json
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NoReturn

from transformers import HfArgumentParser

from training.settings import ROOT, TrainingSettings, has_configurations
from vaswani.errors import UserError
from vaswani.files import write_text


DEFAULT_RECIPE = ROOT / "training" / "recipes" / "demo.toml"
OWNERS = [part.default_factory for part in dataclasses.fields(TrainingSettings)]
SETTINGS = [setting for owner in OWNERS for setting in dataclasses.fields(owner)]
NAMES = [setting.name for setting in SETTINGS]
NEED_NOT_BE_GIVEN = {setting.name for setting in SETTINGS if setting.default is None}
MAY_BE_LISTS = {setting.name for setting in SETTINGS if setting.type == list[str] | None}

# A key of the first kind takes the place of those beside it in a recipe that it is laid over.
TAKES_THE_PLACE_OF = {
    "dataset_name": ("train_file", "validation_file", "test_file"),
    "train_file": ("dataset_name", "dataset_config_name"),
    "tokenizer_name": ("vocab_size",),
    "model_name_or_path": ("config_name", "tokenizer_name", "vocab_size"),
}

EXAMPLES = """Examples:
  accelerate launch training/run.py training/recipes/demo.toml --max_steps 100
  accelerate launch training/run.py --model_name_or_path runs/demo/model
      --train_file new.tsv --validation_file dev.tsv --source_lang en
      --target_lang de --max_steps 300 --warmup_steps 50
      --learning_rate_factor 0.05 ...
"""


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows each flag once, with its default if it has one, and the examples as they are."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, "") else super()._get_help_string(action)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        shown = copy.copy(action)
        shown.option_strings = [flag for flag in action.option_strings if "-" not in flag[2:]]
        return super()._format_action_invocation(shown)


def parse_settings(arguments: list[str]) -> TrainingSettings:
    """Read ``[RECIPE.toml] [--flag value ...]``; with no arguments at all, the demo's recipe.

    Raises
    ------
    UserError
        If the recipe cannot be read, a key or flag is unknown (with the nearest known one), a value is not allowed, or
        a run that was moved is to be resumed where it was.
    """
    if not arguments:
        arguments = [str(DEFAULT_RECIPE)]
    flags, recipe = arguments, list[str]()
    if not arguments[0].startswith("-"):
        flags = arguments[1:]
        recipe = read_recipe(Path(arguments[0]), flags)
    parser = HfArgumentParser(
        OWNERS,
        prog="training/run.py",
        usage="accelerate launch %(prog)s [RECIPE.toml] [--flag value ...]",
        description="Train, evaluate and publish a Transformer.\nEvery flag can stand in the recipe too; flags win.\n"
        "Flags alone change the paper's settings; without any, the demo's recipe runs.\n"
        "--NAME none takes away what a recipe says.",
        epilog=EXAMPLES,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    parser.error = _raise_user_error
    *parts, unknown = parser.parse_args_into_dataclasses(
        recipe + without_nones(flags), return_remaining_strings=True, look_for_args_file=False
    )
    if unknown:
        raise UserError(describe_unknown("flag", unknown[0].split("=")[0]))
    settings = TrainingSettings(*parts)
    settings.validate()
    if recipe and "output_dir" not in values_of(flags) and settings.run.resume_from_checkpoint:
        _check_is_where_it_was(Path(arguments[0]), settings.run.output_dir)
    return settings


def _check_is_where_it_was(recipe: Path, output_dir: str) -> None:
    """Refuse the recipe of a run that was moved, or began in another working directory, and names another folder."""
    folder = recipe.absolute().parent
    if (folder / "checkpoints").is_dir() and folder.resolve() != Path(output_dir).resolve():
        raise UserError(
            f"output_dir={output_dir!r} of {recipe} is another folder than its own, whose checkpoints would not be "
            f"resumed: add {shlex.join(['--output_dir', str(folder)])}"
        )


def _raise_user_error(message: str) -> NoReturn:
    raise UserError(message)


def describe_unknown(kind: str, name: str, known: Iterable[str] = NAMES) -> str:
    """Say that a name is unknown, and which known one is nearest."""
    return f"unknown {kind} {name!r}: the nearest known one is {nearest(name.removeprefix('--'), known)!r}"


def names_of(flags: Iterable[str]) -> list[str]:
    """Return the names of the settings that flags give, such as "seed" of ``--seed=1`` or ``--seed 1``."""
    return list(values_of(flags))


def values_of(flags: Iterable[str]) -> dict[str, str]:
    """Return the settings that flags give, each with its first value as text."""
    flags, values = list(flags), {}
    for flag, following in zip_longest(flags, flags[1:], fillvalue=""):
        if flag.startswith("--"):
            name, equals, value = flag.removeprefix("--").partition("=")
            values[name.replace("-", "_")] = value if equals else following
    return values


def is_taken_away(name: str, value: Any) -> bool:
    """Return whether a value of a setting, as text, says that there is none."""
    return name in NEED_NOT_BE_GIVEN and isinstance(value, str) and value.lower() == "none"


def without_nones(flags: list[str]) -> list[str]:
    """Return the flags without those that say ``none``."""
    taken_away = {name for name, value in values_of(flags).items() if is_taken_away(name, value)}
    kept, keeps = [], True
    for part in flags:
        if part.startswith("--"):
            keeps = next(iter(values_of([part]))) not in taken_away
        kept += [part] if keeps else []
    return kept


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most like this one."""
    return difflib.get_close_matches(name, list(known), n=1, cutoff=0)[0]


def read_recipe(path: Path, flags: Iterable[str]) -> list[str]:
    """Read a recipe as flags, except for the keys whose place `flags` take.

    Its ``[run]`` table is what an earlier run noted of itself, and is skipped.
    """
    arguments = []
    for name, value in what_remains(load_recipe(path), values_of(flags)).items():
        if not is_taken_away(name, value):
            # With "=", a value may begin with "-", as a path can.
            arguments += [f"--{name}", *map(str, value)] if isinstance(value, list) else [f"--{name}={value}"]
    return arguments


def what_remains(recipe: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe without the keys whose place the given ones take."""
    taken_away = {name for name, value in given.items() if is_taken_away(name, value)}
    given = {name: value for name, value in given.items() if name not in taken_away}
    replaced = taken_away.union(*(TAKES_THE_PLACE_OF.get(key, ()) for key in given))
    if "dataset_name" in given and not has_configurations(given["dataset_name"]):
        replaced.add("dataset_config_name")  # with another dataset it stays: that may be a copy of the recipe's
    return {name: value for name, value in recipe.items() if name not in replaced}


def load_recipe(path: Path, *extended_by: Path) -> dict[str, Any]:
    """Read the keys of a recipe, over those of the recipe that it ``extends``: a path from its own folder."""
    path = path.resolve()
    if path in extended_by:
        raise UserError(f"the recipe {path} extends itself")
    try:
        recipe = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"the recipe {path} cannot be read: {reason}") from error
    recipe.pop("run", None)
    origin = recipe.pop("extends", None)
    for name, value in recipe.items():
        if name not in NAMES:
            raise UserError(f"{path}: " + describe_unknown("key", name))
        if isinstance(value, dict) or (isinstance(value, list) and name not in MAY_BE_LISTS):
            raise UserError(f"{path}: {name}={value} must be one value, neither a list nor a table")
    if origin is None:
        return recipe
    if not isinstance(origin, str):
        raise UserError(f"{path}: extends={origin!r} must be the path of a recipe")
    return what_remains(load_recipe(path.parent / origin, path, *extended_by), recipe) | recipe


def write_recipe(settings: TrainingSettings, run: dict[str, Any], path: Path) -> None:
    """Write the resolved recipe, which can be run again, and what is known of the run into its ``[run]`` table."""
    lines = ["# The resolved recipe of this run: training/run.py can run it again.", ""]
    once = ("overwrite_output_dir", "resume_from_checkpoint")  # these concern one start of the run
    given = {name: value for name, value in settings.values().items() if value is not None and name not in once}
    as_toml = partial(json.dumps, ensure_ascii=False)  # JSON's escapes of rare characters are not TOML's
    lines += [f"{name} = {as_toml(value)}" for name, value in given.items()]
    lines += ["", "[run]", *(f"{name} = {as_toml(value)}" for name, value in run.items()), ""]
    write_text(path, "\n".join(lines))
