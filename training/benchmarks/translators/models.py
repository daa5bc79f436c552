"""Our model and MarianMT of the same weights, in one process with all cores, or in as many processes."""

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from transformers import CompileConfig, MaxTimeCriteria, StoppingCriteriaList

from training.benchmarks.translators.work import Contender, Setup
from vaswani.interop.marian import to_marian
from vaswani.models.allowed_tokens_vaswani import AllowedTokens
from vaswani.models.fusion_vaswani import CannotCompile
from vaswani.models.int8_vaswani import Int8IsMissing
from vaswani.workers import Pool


class ModelContenders:
    """Contenders that are one model of transformers.

    Parameters
    ----------
    setup : Setup
    model : VaswaniForConditionalGeneration or MarianMTModel
    name, precision : str
        As they are called in the table.
    """

    def __init__(self, setup: Setup, model: Any, name: str, precision: str):
        self.setup, self.model, self.name, self.precision = setup, model, name, precision
        torch.set_num_threads(setup.cores)

    def one_by_one(self, beams: int, **settings: Any) -> Contender:
        """Return the one that translates batch after batch, with all cores or on a GPU."""
        return self._contender(self.setup.threads, beams, partial(self._one_by_one, num_beams=beams, **settings))

    def side_by_side(self, beams: int, **settings: Any) -> Contender:
        """Return the one that translates a batch on each core, in processes that live on, as `Translator` has them."""
        assert self.setup.workers is not None
        generate = partial(self.setup.work.generate, self.model, num_beams=beams, **settings)
        pool = Pool(generate, self.setup.cores)
        return self._contender(self.setup.workers, beams, partial(self._side_by_side, pool))

    def both(self) -> list[Contender]:
        """Return those of both searches, and of both ways to use the cores, if there are two."""
        ways = [self.one_by_one] + ([self.side_by_side] if self.setup.workers else [])
        return [way(beams) for beams in (1, self.setup.beams) for way in ways]

    def faster(self, name: str, is_cut: bool = False, **settings: Any) -> list[Contender]:
        """Return those of both searches with further settings, in the faster way to use the cores."""
        way = self.side_by_side if self.setup.workers else self.one_by_one
        if is_cut:
            settings["logits_processor"] = [AllowedTokens(self.setup.shortlist)]
        contenders = [way(beams, **settings) for beams in (1, self.setup.beams)]
        return [replace(each, name=f"{self.name}, {name}", is_cut=is_cut) for each in contenders]

    def _contender(self, setting: str, beams: int, translate: Callable[[], None]) -> Contender:
        return Contender(self.name, self.precision, setting, beams, translate)

    def _one_by_one(self, **settings: Any) -> None:
        for number in range(len(self.setup.work.batches)):
            self.setup.work.generate(self.model, number, **settings)
        if self.setup.device == "cuda":
            torch.cuda.synchronize()

    def _side_by_side(self, pool: Pool) -> None:
        if not pool.is_started:
            pool.function(0)  # so that the processes share what the model keeps
        for _ in pool.run(range(len(self.setup.work.batches))):
            pass


def ours_in_float32(setup: Setup) -> list[Contender]:
    """Return our model as it is stored, in one process, if there is a faster type."""
    if setup.fast_type[1] == "fp32":
        return []
    contenders = ModelContenders(setup, setup.model().to(setup.device), "ours", "fp32")
    return [contenders.one_by_one(beams) for beams in (1, setup.beams)]


def ours(setup: Setup) -> list[Contender]:
    """Return our model in the fast type: its own searches, beams by the paper's alpha, and transformers' search.

    On a GPU also its own searches with recorded steps. On a CPU those that are compiled are in int8.
    """
    dtype, precision = setup.fast_type
    model = setup.model().to(setup.device, dtype)
    endless = StoppingCriteriaList([MaxTimeCriteria(math.inf)])  # which transformers' loop alone asks
    stock = ModelContenders(setup, model, "ours, stock beam", precision).one_by_one(
        setup.beams, length_penalty_alpha=None, stopping_criteria=endless
    )
    contenders = ModelContenders(setup, model, "ours", precision)
    recorded = contenders.faster("compiled", compile_config=CompileConfig()) if setup.device == "cuda" else []
    return [*contenders.both(), stock, *recorded]


def ours_in_int8(setup: Setup) -> list[Contender]:
    """Return our model in int8, whole and with a part of the vocabulary, as it is and compiled.

    In the fast type, with a part of the vocabulary, where int8 is missing; none on a GPU.
    """
    if setup.device == "cuda":
        return []
    try:
        contenders = ModelContenders(setup, setup.model().quantize(), "ours", "int8")
    except Int8IsMissing as error:
        print(f"ours in int8 is left out: {error}", file=sys.stderr)
        dtype, precision = setup.fast_type
        return ModelContenders(setup, setup.model().to(dtype), "ours", precision).faster("shortlist", is_cut=True)
    found = contenders.both() + contenders.faster("shortlist", is_cut=True)
    how = {"compile_config": CompileConfig()}
    try:
        setup.work.generate(contenders.model, 0, **how)
    except CannotCompile as error:
        print(f"ours, compiled, is left out: {error}", file=sys.stderr)
        return found
    return [
        *found,
        *contenders.faster("compiled", **how),
        *contenders.faster("compiled, shortlist", is_cut=True, **how),
    ]


def marian(setup: Setup) -> list[Contender]:
    """Return MarianMT of our weights, in the fast type."""
    dtype, precision = setup.fast_type
    model = to_marian(setup.model()).to(setup.device, dtype)
    model.generation_config.max_length = None  # the work's own lengths hold, and both would make it warn each time
    return ModelContenders(setup, model, "MarianMT", precision).both()
