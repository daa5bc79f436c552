"""What the directory of a run tells: its settings, how far it is, what it logged, cost and translated."""

import json
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from training.tables.cost import flops_per_target_token
from training.tables.metrics import seconds_of_training
from training.trainer.logbook import FINAL, OUTPUTS
from training.trainer.run_directory import is_finished
from vaswani.errors import UserError
from vaswani.models.trees_vaswani import TREES
from vaswani.record import is_recorded, read_row


@dataclass(frozen=True)
class Outputs:
    """What one evaluation translated.

    Attributes
    ----------
    split : str
    step : int or None
        None for the evaluation at the end of the run.
    sources, references, outputs : list of str
    """

    split: str
    step: int | None
    sources: list[str]
    references: list[str]
    outputs: list[str]

    @property
    def name(self) -> str:
        """Such as "update 500" or "at the end"."""
        return "at the end" if self.step is None else f"update {self.step:,}"


@dataclass(frozen=True)
class RunRecord:
    """A run, finished or under way.

    Attributes
    ----------
    name : str
        That tells it from the other runs of a report.
    directory : Path
    recipe : dict
        Its settings, and as `recipe["run"]` the versions, hardware, command and date.
    updates, evaluations : list of dict
        The rows that it has logged of its updates, and of its own evaluations: not those of `vaswani evaluate`.
    unreadable : int
        Lines of `metrics.jsonl` that are not whole, as a run that is killed may leave them.
    """

    name: str
    directory: Path
    recipe: dict[str, Any]
    updates: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    unreadable: int

    @property
    def languages(self) -> tuple[str, str]:
        """From which to which it learns to translate."""
        return self.recipe.get("source_lang", ""), self.recipe.get("target_lang", "")

    @property
    def is_parser(self) -> bool:
        """Whether it learns to parse."""
        return self.languages[1] == TREES

    @property
    def step(self) -> int:
        """How many updates are logged."""
        return max((row["step"] for row in self.updates), default=0)

    @property
    def max_steps(self) -> int:
        """How many there will be."""
        return int(self.recipe["max_steps"])

    @property
    def is_finished(self) -> bool:
        """Whether it has published its model, and has not been extended since."""
        return is_finished(self.directory)

    @property
    def target_tokens(self) -> int:
        """That it has been trained on."""
        return sum(row["target_tokens"] for row in self.updates)

    @property
    def seconds(self) -> float:
        """Of training, without evaluations and checkpoints."""
        return seconds_of_training(self.updates)

    @property
    def seconds_left(self) -> float | None:
        """What the updates that are left will take at this rate; None if there are none, or nothing is logged."""
        if self.is_finished or not self.step:
            return None
        return (self.max_steps - self.step) * self.seconds / self.step

    @cached_property
    def flops(self) -> float | None:
        """Operations of the training so far; None where the model is not known yet or cannot be counted."""
        configs = [self.directory / "model" / "config.json", *sorted(self.directory.glob("checkpoints/*/config.json"))]
        found = next((path for path in configs if path.exists()), None)
        if found is None:
            return None
        try:
            return self.target_tokens * flops_per_target_token(AutoConfig.from_pretrained(found.parent))
        except UserError:
            return None

    @cached_property
    def lengths(self) -> dict[str, list[int]]:
        """How many training sentences have 0, 1, 2, ... tokens, by side; empty for runs that did not count them."""
        path = self.directory / "lengths.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def outputs(self, split: str) -> list[Outputs]:
        """Return what the evaluations on a split translated, in their order, the one at the end last."""
        folder = self.directory / OUTPUTS
        found = []
        for path in sorted(folder.glob(f"{split}.*.txt")):
            name = path.name.split(".")[1]
            step = int(name.removeprefix("step-")) if name.startswith("step-") else None
            if step is not None or name == FINAL:
                sides = [read_lines(folder / f"{split}.{side}.txt") for side in ("source", "reference")]
                found.append(Outputs(split, step, *sides, read_lines(path)))
        return sorted(found, key=lambda outputs: (outputs.step is None, outputs.step))


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file, which only a line feed ends; none if it is not there."""
    return path.read_bytes().decode("utf-8").split("\n")[:-1] if path.exists() else []


def read_runs(directories: list[Path]) -> list[RunRecord]:
    """Read the directories of runs, which get the shortest names that tell them apart.

    Raises
    ------
    UserError
        If one is no directory of a run, or stands there twice.
    """
    paths = [directory.resolve() for directory in directories]
    if len(set(paths)) < len(paths):
        raise UserError(f"RUN_DIR {' '.join(map(str, directories))}: each run must stand there once")
    depths = range(1, max(len(path.parts) for path in paths) + 1)
    names = (["/".join(path.parts[-depth:]) for path in paths] for depth in depths)
    shortest = next(found for found in names if len(set(found)) == len(paths))
    return [read_run(path, name) for path, name in zip(paths, shortest, strict=True)]


def read_run(directory: Path, name: str) -> RunRecord:
    """Read the directory of a run.

    Raises
    ------
    UserError
        If it has no metrics or settings, or they cannot be read.
    """
    for file in ("metrics.jsonl", "recipe.toml"):
        if not (directory / file).is_file():
            raise UserError(
                f"RUN_DIR {directory} must be the output directory of training/run.py, which has a {file}: this has "
                "none"
            )
    try:
        recipe = tomllib.loads((directory / "recipe.toml").read_text(encoding="utf-8"))
        lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        rows = list(map(read_row, lines))
        whole = [row for row in rows if row is not None]
        own = [row for row in whole if not is_recorded(row)]
        updates, evaluations = ([row for row in own if ("split" in row) == is_one] for is_one in (False, True))
        record = RunRecord(name, directory, recipe, updates, evaluations, len(rows) - len(whole))
        _ = record.max_steps, record.step, record.seconds
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"RUN_DIR {directory} cannot be read as a run: {type(error).__name__}: {error}") from error
    return record
