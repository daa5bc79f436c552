"""The records of a run: `recipe.toml`, `metrics.jsonl`, translations; a progress bar, and what the run will do."""

import json
import math
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from training.data.batch_plan import possible_groups
from training.data.preparation import Prepared, lengths
from training.machine import PACKAGES, describe_commit, describe_hardware, installed_version
from training.recipe import write_recipe
from training.settings import RunSettings, TrainingSettings
from vaswani.errors import UserError
from vaswani.files import write_text
from vaswani.models.trees_vaswani import TREES
from vaswani.record import is_recorded, read_row
from vaswani.results import Evaluation


OUTPUTS = "outputs"  # the folder of what was translated, in a run's directory
FINAL = "final"  # in the names of its files, the evaluation at the end
REPLACED = "checkpoints", "model", OUTPUTS, "report", "space"  # what a run that begins replaces there


def describe_run(accelerator: Accelerator) -> dict[str, Any]:
    """Collect everything that a run depends on besides its settings: versions, hardware, code and date."""
    return {
        "command": shlex.join(sys.argv),
        "date": time.strftime("%Y-%m-%d"),
        "commit": describe_commit(),
        "python": platform.python_version(),
        **{package: installed_version(package) for package in PACKAGES},
        "processes": accelerator.num_processes,
        "precision": accelerator.mixed_precision,
        "hardware": describe_hardware(accelerator.device),
    }


@contextmanager
def writing(path: Path) -> Generator[None, None, None]:
    """Refuse to go on where a record of the run cannot be written, as on a full disk."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path} could not be written: {error.strerror or error}; make room, then resume: the run goes on from "
            "its last checkpoint"
        ) from error


class Logbook:
    """Writes rows of a run to `metrics.jsonl` and to accelerate's trackers, and shows its progress.

    Parameters
    ----------
    directory : Path
        The run's output directory. The results of an earlier run there are removed, unless it is to be resumed.
    accelerator : Accelerator
        Only its main process writes and shows anything.
    settings : TrainingSettings
        Written to `recipe.toml`, with the versions and hardware.
    origin : dict of str to str, optional
        Written there too: the model that the run starts from.
    """

    def __init__(
        self,
        directory: Path,
        accelerator: Accelerator,
        settings: TrainingSettings,
        origin: dict[str, str] | None = None,
    ):
        self.path = directory / "metrics.jsonl"
        self.accelerator = accelerator
        self.settings, self.origin = settings, origin or {}
        self.progress = tqdm(
            total=settings.optimization.max_steps,
            desc="Training",
            unit="step",
            disable=not accelerator.is_main_process,
        )
        if accelerator.is_main_process:
            if not settings.run.resume_from_checkpoint:
                for name in REPLACED:
                    shutil.rmtree(directory / name, ignore_errors=True)
                (directory / "report.html").unlink(missing_ok=True)
                self.keep_recipe()  # first: by it a sweep knows a run that can be resumed
                self.path.write_text("", encoding="utf-8")
            (directory / "checkpoints").mkdir(exist_ok=True)

    def keep_recipe(self) -> None:
        """Write the settings, and what else the run depends on, to `recipe.toml`."""
        path = self.path.with_name("recipe.toml")
        with writing(path):
            write_recipe(self.settings, describe_run(self.accelerator) | self.origin, path)

    def rewind(self, step: int, evaluated: Sequence[int]) -> None:
        """Forget all that was logged and translated after a checkpoint, which is resumed: it will be done again.

        What `vaswani evaluate` recorded of that checkpoint, or of earlier ones, stays. Only now do the settings take
        the place of those in `recipe.toml`: with others the run is refused.

        Parameters
        ----------
        step : int
            The checkpoint's.
        evaluated : sequence of int
            Steps whose evaluation the checkpoint knows of.
        """
        if not self.accelerator.is_main_process:
            return
        kept, is_evaluated = [], step in evaluated
        for line in self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []:
            row = read_row(line)
            if row is None:  # cut off when the process was killed
                continue
            if row["step"] == step and "split" in row and not is_recorded(row):
                # Known is at most the first one, on the way; what is published is evaluated behind it, and again.
                if not is_evaluated:
                    continue
                is_evaluated = False
            if row["step"] <= step:
                kept.append(line + "\n")
        with writing(self.path):
            write_text(self.path, "".join(kept))
        for path in (self.path.parent / OUTPUTS).glob("*.*.txt"):
            name = path.name.split(".")[1]
            if name == FINAL or (name.startswith("step-") and name > output_name(step)):
                path.unlink()
        self.keep_recipe()
        self.progress.n = self.progress.last_print_n = self.progress.initial = step
        self.progress.refresh()

    def log(self, row: dict[str, Any]) -> None:
        """Append one row to the metrics and, for training rows, show it at the progress bar."""
        if not self.accelerator.is_main_process:
            return
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        split = row.get("split", "train")
        values = {f"{split}/{name}": value for name, value in row.items() if isinstance(value, int | float)}
        self.accelerator.log(values, step=row["step"])
        if split == "train":
            self.progress.set_postfix(
                loss=f"{row['loss'] or math.nan:.3f}",
                nll=f"{row['nll'] or math.nan:.3f}",
                lr=f"{row['learning_rate']:.1e}",
                tokens_per_second=f"{row['target_tokens_per_second']:,.0f}",
            )

    def say(self, text: str) -> None:
        """Print above the progress bar, once."""
        if self.accelerator.is_main_process:
            self.progress.write(text)

    def show(
        self,
        evaluation: Evaluation,
        sources: Sequence[str],
        references: Sequence[str],
        translations: Sequence[str],
        samples: int = 4,
    ) -> None:
        """Print an evaluation and the same few sentences each time, beside their references, as one block."""
        block = [evaluation.summary()]
        for index in range(0, len(translations), max(1, len(translations) // samples))[:samples]:
            block += [f"  source     {sources[index]}", f"  model      {translations[index]}"]
            block += [f"  reference  {references[index]}", ""]
        self.say("\n" + "\n".join(block))

    def keep_lengths(self, **lengths: Sequence[int]) -> None:
        """Write to `lengths.json` how many training sentences have 0, 1, 2, ... tokens, by side."""
        if self.accelerator.is_main_process:
            counts = {side: np.bincount(of_side).tolist() for side, of_side in lengths.items()}
            path = self.path.with_name("lengths.json")
            with writing(path):
                write_text(path, json.dumps(counts))

    def keep(
        self, split: str, name: str, sources: Sequence[str], references: Sequence[str], outputs: Sequence[str]
    ) -> None:
        """Write what was translated to `outputs/`, a sentence a line, as sacreBLEU's command line reads it.

        Parameters
        ----------
        split : str
            Whose sources and references are written beside.
        name : str
            Which evaluation of this split it was, `output_name` or `FINAL`.
        sources, references, outputs : sequence of str
        """
        if not self.accelerator.is_main_process:
            return
        for kind, lines in (("source", sources), ("reference", references), (name, outputs)):
            text = "".join(" ".join(line.split("\n")) + "\n" for line in lines)
            path = self.path.parent / OUTPUTS / f"{split}.{kind}.txt"
            with writing(path):
                write_text(path, text)  # a report may read it at any time

    def close(self) -> None:
        """End the progress bar and the trackers."""
        self.progress.close()
        self.accelerator.end_training()


def output_name(step: int) -> str:
    """Return how the files in `outputs/` name an evaluation on the way."""
    return f"step-{step:07}"


def describe_training(
    settings: TrainingSettings, model: PreTrainedModel, prepared: Prepared, accelerator: Accelerator
) -> str:
    """Say before the first update what a run will do: task, model and machine, updates, evaluations, checkpoints."""
    data, optimization, run = settings.data, settings.optimization, settings.run
    task = f"translate from {data.source_lang} to {data.target_lang}"
    if data.target_lang == TREES:
        task = f"parse {data.source_lang}"
    together = f" ({accelerator.distributed_type.value})" if accelerator.num_processes > 1 else ""
    sides = lengths(prepared.encoded["train"])
    source, target = (int(side.sum(dtype=np.int64)) for side in sides)
    # The longer side fills an update, and an epoch ends with one that it need not fill.
    of_update = target / math.ceil(max(source, target) / optimization.max_tokens_per_batch)
    in_all = optimization.max_steps * of_update
    longest, wanted = max(int(side.max()) for side in sides), optimization.length_groups
    groups, in_groups = possible_groups(wanted, longest, optimization.max_tokens_per_batch), ""
    if groups < wanted:
        in_groups = f" in {groups} groups, not length_groups={wanted}, since each must have room for {longest}"
    most = "" if run.early_stopping_patience is None else "at most "
    limit = "" if run.max_time is None else f"; ends after {as_time(60 * run.max_time)} (max_time), to be resumed"
    splits = " and ".join(str(split) for split in prepared.text if split != "train")
    is_evaluated = 0 < run.eval_steps < optimization.max_steps
    on_the_way = f"on validation every {run.eval_steps:,} updates, and " if is_evaluated else ""
    return (
        f"Learns to {task}: {model.config.model_type} model, {model.num_parameters():,} parameters, d_model "
        f"{model.config.d_model}\n"
        f"Trains for {most}{optimization.max_steps:,} updates of about {two_digits(of_update)} target tokens"
        f"{in_groups}, {two_digits(in_all)} in all ({in_all / target:.3g} epochs){limit}\n"
        f"Evaluates {on_the_way}on {splits} at the end; saves {describe_saving(run)}\n"
        f"{accelerator.num_processes} process(es) on {accelerator.device.type}{together}, precision "
        f"{accelerator.mixed_precision}; writes to {run.output_dir}"
    )


def describe_saving(run: RunSettings) -> str:
    """Say when a run saves checkpoints."""
    best = "" if run.early_stopping_patience is None else ", and the best one so far"
    if run.save_minutes:
        return f"a checkpoint every {run.save_minutes:g} minutes{best}"
    if run.save_steps:
        return f"a checkpoint every {run.save_steps:,} updates{best}"
    if best:
        return "the best checkpoint so far"
    return "no checkpoints, unless it is interrupted"


def two_digits(count: float) -> str:
    """Write a count that is not known better, such as 25,000."""
    return f"{float(f'{count:.2g}'):,.0f}"


def as_time(seconds: float) -> str:
    """Write a time as hours and minutes, or minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min {rest:02} s"
