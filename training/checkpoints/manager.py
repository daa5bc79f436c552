"""The checkpoints of a run: saving, resuming, and choosing the weights to publish."""

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from training.checkpoints.files import (
    average_checkpoints,
    damage,
    find_checkpoint,
    list_checkpoints,
    prune,
    read_state,
    save_checkpoint,
    set_aside,
    step_of,
)
from training.checkpoints.fingerprint import differences
from training.checkpoints.sharding import full_tensor, load_tensors, optimizer_tensors
from training.settings import RunSettings
from vaswani.errors import UserError
from vaswani.models.translator_vaswani import TranslatorForConditionalGeneration


class Sums(NamedTuple):
    """Sums over the updates since the last log row: of the loss, and of tokens, both sides and padding included.

    Those that were skipped are not among the updates.
    """

    loss: float = 0.0
    nll: float = 0.0
    target_tokens: float = 0.0
    real_tokens: float = 0.0
    padded_tokens: float = 0.0
    gradient_norms: float = 0.0
    updates: float = 0.0

    def plus(self, other: "Sums") -> "Sums":
        """Add field by field."""
        return Sums(*(mine + its for mine, its in zip(self, other, strict=True)))


@dataclass
class Progress:
    """How far a run is. With the weights and Adam's moments it is all that resuming needs: order and dropout follow.

    `position` is the number of updates of this epoch that are done, of `epoch_length`. `scores` are the evaluations on
    validation: step and value of `metric_for_best_model`. `best_by` is that measure where the best weights are kept,
    "" where they are not, and None in checkpoints of versions that did not note it.
    """

    step: int = 0
    epoch: int = 0
    position: int = 0
    epoch_length: int = 1
    skipped_updates: int = 0
    skipped_in_a_row: int = 0
    sums: Sums = field(default_factory=Sums)
    scores: list[list[float]] = field(default_factory=list)
    best_by: str | None = None

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Progress":
        """Return what a checkpoint saved: the fields, in which JSON made a list of the sums."""
        return cls(**state | {"sums": Sums(*state["sums"])})


class ChosenWeights(NamedTuple):
    """The weights to publish: the average of how many checkpoints, and the step of the last of these.

    The step is None for the weights of the last update, which need no checkpoint.
    """

    averaged: int
    step: int | None


class CheckpointManager:
    """Saves a run, and resumes it.

    Parameters
    ----------
    accelerator : Accelerator
    settings : RunSettings
    model : TranslatorForConditionalGeneration
        The model that is evaluated and published. At the end it holds the chosen weights.
    fingerprint : dict
        Must not change between saving and resuming.
    say : callable
        Tells the user a sentence, once.

    Attributes
    ----------
    trained : TranslatorForConditionalGeneration
        The model that learns: the same, or a copy of it where FSDP will take it apart.
    saved_step : int
        Step of the newest checkpoint.
    superseded : dict of Path to str
        Checkpoints that the one that was resumed takes the place of, and why; `set_superseded_aside` does it.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        settings: RunSettings,
        model: TranslatorForConditionalGeneration,
        fingerprint: dict[str, dict[str, Any]],
        say: Callable[[str], None],
    ):
        self.accelerator, self.settings, self.model = accelerator, settings, model
        self.fingerprint, self.say = fingerprint, say
        self.directory = Path(settings.output_dir) / "checkpoints"
        self.trained = copy.deepcopy(model) if accelerator.is_fsdp2 else model
        self.saved_step = 0
        self.superseded: dict[Path, str] = {}
        if accelerator.is_main_process:
            model.to(accelerator.device)

    def save(self, progress: Progress, optimizer: torch.optim.Optimizer, note: str = "") -> None:
        """Save a checkpoint: all processes gather the tensors, the main one writes."""
        self.collect()
        moments = {name: full_tensor(value) for name, value in optimizer_tensors(self.trained, optimizer).items()}
        if self.accelerator.is_main_process:
            scaler = self.accelerator.scaler
            state = {
                "progress": asdict(progress),
                "processes": self.accelerator.num_processes,
                "mixed_precision": self.accelerator.mixed_precision,
                "scaler": None if scaler is None else scaler.state_dict(),
                "identity": self.fingerprint,
            }
            save_checkpoint(self.directory, progress.step, self.model, moments, state, note)
            prune(self.directory, self.settings.save_total_limit)
        self.accelerator.wait_for_everyone()
        self.saved_step = progress.step

    def collect(self) -> None:
        """Bring the whole model to the main process, where FSDP trains it in pieces."""
        if self.model is not self.trained:
            weights = {name: full_tensor(weight) for name, weight in self.trained.named_parameters()}
            if self.accelerator.is_main_process:
                self.model.load_state_dict(weights, strict=False)  # shared weights have one name here

    def resume(self, optimizer: torch.optim.Optimizer) -> Progress:
        """Resume from a checkpoint, where the settings say so and there is one.

        Raises
        ------
        UserError
            If there is no good one, or recipe, model, tokenizer or data have changed.
        """
        found: list[Any] = [None, None]
        if self.accelerator.is_main_process and self.settings.resume_from_checkpoint:
            found = self._find(self.settings.resume_from_checkpoint)
        folder, state = broadcast_object_list(found)
        if folder is None:
            return Progress()
        load_tensors(folder, self.trained, optimizer, self.accelerator)
        if self.accelerator.scaler is not None and state["scaler"] is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        progress = Progress.from_state(state["progress"])
        self.saved_step = progress.step
        self.say(f"Resumed from {folder} at step {progress.step:,}")
        if state["processes"] != self.accelerator.num_processes:
            self.say(
                f"It was saved by {state['processes']} process(es), now there are {self.accelerator.num_processes}: "
                "updates hold the same pairs as before, but rounding and dropout differ"
            )
        return progress

    def _find(self, which: str) -> list[Any]:
        """Find a checkpoint and its state, check that it is of this run, and note what it supersedes."""
        folder, self.superseded = find_checkpoint(self.directory, which)
        state = folder and read_state(folder)
        changed = differences(state["identity"], self.fingerprint) if state else []
        here = self.accelerator.mixed_precision
        if state and not changed and (there := state.get("mixed_precision", here)) != here:  # as accelerate has it
            changed = [f"mixed_precision is {there!r} there, {here!r} here"]
        if changed:
            raise UserError(f"{folder} cannot be resumed, since it is of another run: {'; '.join(changed)}")
        best = [other for other in list_checkpoints(self.directory, "best") if other not in self.superseded]
        if state and state["progress"].get("best_by") and not best:
            state["progress"]["best_by"] = ""  # they were of a later step, or damaged
        if folder is None:
            self.say("There is no checkpoint yet: the run begins at its beginning")
        return [folder, state]

    def set_superseded_aside(self) -> None:
        """Set aside the checkpoints that the resumed one supersedes, once nothing can be refused any more."""
        for other, reason in self.superseded.items():
            self.say(f"{other.name} {reason}: it is set aside as {set_aside(other).name}")
        self.superseded = {}

    def choose_weights(self) -> ChosenWeights:
        """Load the weights to publish, and say which they are.

        "We used a single model obtained by averaging the last 5 checkpoints" (section 6.1), where the settings say
        so; else, or if there are fewer, the best weights where they stop early, else the last ones.
        """
        self.collect()
        settings, folders = self.settings, []
        wanted, stops_early = settings.average_checkpoints, settings.early_stopping_patience is not None
        if wanted > 1:
            folders = list_checkpoints(self.directory, "")[-wanted:]
        best = list_checkpoints(self.directory, "best")[-1:] if stops_early and len(folders) < wanted else []
        if 1 < wanted != len(folders):
            taken = "the best" if best else "the last" if len(folders) < 2 else "their average"
            self.say(
                f"The run has made {len(folders)} of the {wanted} checkpoints that average_checkpoints asks for: "
                f"{taken} will be published"
            )
        folders = best or folders
        if not self.accelerator.is_main_process or not folders:
            return ChosenWeights(1, None)
        problems = {folder: damage(folder) for folder in folders}
        for folder, problem in problems.items():
            if problem is not None:
                self.say(f"{folder.name} is damaged ({problem}): it is left out")
        folders = [folder for folder in folders if problems[folder] is None]
        if not folders:
            return ChosenWeights(1, None)
        self.model.load_state_dict(average_checkpoints(folders), strict=False)  # a file holds shared weights once
        return ChosenWeights(len(folders), step_of(folders[-1]))
