"""How Table 2's systems are compared: the same cost for each, and the same small search for its learning rate."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from training.data.vocabulary import count_types
from training.recipe import names_of, values_of
from training.tables.cost import count_parameters, flops_per_target_token
from training.tables.flags import flags_of_a_length
from training.tables.metrics import logged_evaluations, logged_updates
from training.tables.scaling import scale_config
from training.tables.sweep import Run
from training.tables.systems.catalogue import BASELINE, SYSTEMS, System
from vaswani.errors import UserError


UPDATES_TO_TIME = 30


@dataclass
class Entry:
    """A system in the comparison: what its model costs, and what was chosen for it.

    Attributes
    ----------
    parameters : int
    flops_per_target_token : float
    steps : int or None
        Updates of a final run; None until its speed is known, where the budget is a time.
    factor : float or None
        The learning rate's factor that the search chose; None before.
    search : dict of float to Run
        The run for each factor that is tried.
    runs : list of Run
        The final ones, one for each seed.
    """

    system: System
    parameters: int
    flops_per_target_token: float
    tokens_per_update: int
    steps: int | None = None
    factor: float | None = None
    search: dict[float, Run] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)

    def flops(self, steps: int) -> float:
        """Return the operations of this many updates."""
        return steps * self.tokens_per_update * self.flops_per_target_token


class Plan:
    """All runs of the comparison, made as soon as what they depend on is known.

    Parameters
    ----------
    systems : sequence of System
    options : argparse.Namespace
        The flags of table2.py.
    flags : list of str
        The flags of run.py for all runs.
    """

    def __init__(self, systems: Sequence[System], options: argparse.Namespace, flags: list[str]):
        self.options, self.flags = options, flags
        for name, values in (("seed", options.seeds), ("learning_rate_factor", options.learning_rate_factors)):
            for value in values:  # what run.py would refuse once others are trained
                systems[0].settings(*flags, f"--{name}={value}")
        self.entries = [self._entry(system) for system in systems]
        budget = self.budget_in_flops()
        for entry in self.entries:
            entry.steps = self._steps(entry, budget)
            if entry.steps is not None:
                self._check_search(entry, entry.steps)

    def _entry(self, system: System) -> Entry:
        settings = system.settings(*self.flags)
        config = scale_config(system.config, self.options.scale)
        config.vocab_size = count_types(settings.model)
        tokens = settings.optimization.max_tokens_per_batch
        return Entry(system, count_parameters(config), flops_per_target_token(config), tokens)

    def _steps(self, entry: Entry, flops: float) -> int | None:
        """Return the updates that the budget pays for, these FLOPs or another; None if it is a time."""
        options = self.options
        if options.minutes is not None:
            return None
        if options.target_tokens is not None:
            text, steps = f"target_tokens={options.target_tokens}", options.target_tokens // entry.tokens_per_update
        else:
            text, steps = f"flops={flops:g}", int(flops / entry.flops(1))
        if steps < 1:
            raise UserError(
                f"{text} does not suffice for one update of {entry.system.name!r}, which has "
                f"{entry.tokens_per_update:,} target tokens and costs {entry.flops(1):.2g} FLOPs"
            )
        return steps

    def _search_steps(self, steps: int) -> int:
        """Return the updates for which a system tries each factor."""
        return max(1, int(self.options.search_share * steps))

    def _check_search(self, entry: Entry, steps: int) -> None:
        """Refuse a search that ends before the learning rate has reached its peak: the highest would always win."""
        warmup = entry.system.settings(*self.flags).optimization.warmup_steps
        if len(self.options.learning_rate_factors) > 1 and self._search_steps(steps) <= warmup:
            raise UserError(
                f"search_share={self.options.search_share:g} lets {entry.system.name!r} try each learning rate for "
                f"{self._search_steps(steps):,} updates, which must be more than warmup_steps={warmup:,}: raise the "
                "share, shorten the warm-up, or give one of learning_rate_factors"
            )

    def budget_in_flops(self) -> float:
        """Return the training FLOPs of each system: those given, or those of the Transformer's recipe."""
        if self.options.flops is not None:
            return self.options.flops
        baseline = self._entry(SYSTEMS[BASELINE])
        return baseline.flops(SYSTEMS[BASELINE].settings(*self.flags).optimization.max_steps)

    def runs_to_time(self) -> list[Run]:
        """Return a short run of each system, by which its speed is found, where the budget is a time."""
        if self.options.minutes is None:
            return []
        # The fastest third counts, since the first updates are slow; the fastest update alone would be luck.
        flags = ["--max_eval_samples=10", f"--logging_steps={UPDATES_TO_TIME // 3}"]
        return [self._run(entry, "speed", UPDATES_TO_TIME, flags) for entry in self.entries]

    def set_steps(self, timed: Sequence[Run]) -> None:
        """Turn the budget of minutes into updates, by the speed of the runs that were timed.

        Raises
        ------
        UserError
            If the time does not suffice for one update of a system.
        """
        for entry, run in zip(self.entries, timed, strict=False):
            rate = max(row["target_tokens_per_second"] for row in logged_updates(run.directory))
            entry.steps = int(self.options.minutes * 60 * rate / entry.tokens_per_update)
            if entry.steps >= 1:
                self._check_search(entry, entry.steps)
            else:
                raise UserError(
                    f"minutes={self.options.minutes:g} does not suffice for one update of {entry.system.name!r}, "
                    f"which trains on {rate:.0f} target tokens a second"
                )

    def plan_search(self) -> list[Run]:
        """Make the runs that the search for learning rates needs next; none when it is over, or there is but one rate.

        Each system tries the factors that are given; then half the lowest or twice the highest, for as long as that
        one is the best.
        """
        runs = []
        for entry in self.entries if len(self.options.learning_rate_factors) > 1 else []:
            assert entry.steps is not None
            steps = self._search_steps(entry.steps)
            for factor in self._factors_to_try(entry):
                flags = [f"--learning_rate_factor={factor}", *self._search_flags()]
                entry.search[factor] = self._run(entry, f"search-{factor:g}", steps, flags)
                runs.append(entry.search[factor])
        return runs

    def _search_flags(self) -> list[str]:
        """Return what makes a search cheap, less what the user set."""
        return [f"--{name}={value}" for name, value in SEARCH_SETTINGS.items() if name not in names_of(self.flags)]

    def _factors_to_try(self, entry: Entry) -> list[float]:
        if not entry.search:
            return self.options.learning_rate_factors
        best, further = best_factor(entry), []
        if best == min(entry.search):
            further.append(best / 2)
        if best == max(entry.search):
            further.append(2 * best)
        return further

    def choose(self) -> None:
        """Choose for each system the factor with the lowest perplexity on validation."""
        for entry in self.entries:
            entry.factor = best_factor(entry) if entry.search else self.options.learning_rate_factors[0]

    def plan_runs(self) -> list[Run]:
        """Make the final runs, a system's after one another."""
        for entry in self.entries:
            assert entry.steps is not None
            given = [] if "eval_steps" in names_of(self.flags) else [f"--eval_steps={max(1, entry.steps // 5)}"]
            given.append(f"--learning_rate_factor={entry.factor}")
            entry.runs = [
                self._run(entry, str(seed), entry.steps, [f"--seed={seed}", *given]) for seed in self.options.seeds
            ]
        return [run for entry in self.entries for run in entry.runs]

    def config_folder(self, system: System) -> Path:
        """Return where the scaled config of a system is written."""
        return self.options.output_dir / "configs" / system.name

    def _run(self, entry: Entry, name: str, steps: int, flags: list[str]) -> Run:
        system, recipe = entry.system, entry.system.settings(*self.flags)
        ours = [f"--output_dir={self.options.output_dir / f'{system.name}-{name}'}", "--save_total_limit=5"]
        if self.options.scale != 1:
            ours.append(f"--config_name={self.config_folder(system)}")
        ours += flags_of_a_length(steps, recipe, names_of(self.flags))
        save_steps = int(values_of([*self.flags, *ours])["save_steps"])
        saved = math.ceil(steps / save_steps) if save_steps else 1
        ours += [f"--average_checkpoints={min(system.average_checkpoints, saved)}", *flags]
        arguments = [*system.arguments(), *self.flags, *ours]
        return Run(f"{system.name}-{name}", arguments, system.settings(*self.flags, *ours), cost=entry.flops(steps))


# The search needs the perplexity of validation only: translations, which cost more, are few.
SEARCH_SETTINGS = {"max_eval_samples": 300, "eval_steps": 0}


def best_factor(entry: Entry) -> float:
    """Return the factor that led to the lowest perplexity on validation, of those that a system has tried."""
    return min(entry.search, key=lambda factor: perplexity(entry.search[factor]))


def perplexity(run: Run) -> float:
    """Return a run's last perplexity on validation; infinity if it diverged and never came to its end."""
    return logged_evaluations(run.directory, "validation")[-1]["perplexity"] if run.is_finished else math.inf
