"""Translation speed: `generate()` against MarianMT of the same weights, and against CTranslate2, in turns.

Every translation has the same number of tokens, so that a token is the same work for all. A rate counts the tokens of
the translations, and the time from source ids to target ids. Peers use the cores both ways: several threads on one
batch, or as many workers, each with a batch of its own.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from training.benchmarks.records import GenerationRow, Rates, as_record, take_turns
from training.benchmarks.translators.libraries import convert, ctranslate2, has_ctranslate2
from training.benchmarks.translators.models import (
    marian,
    ours,
    ours_in_float32,
    ours_in_int8,
)
from training.benchmarks.translators.peak import peaks
from training.benchmarks.translators.processes import in_processes
from training.benchmarks.translators.work import Contender, Setup, Work, gigaflops_per_token
from training.machine import usable_cores
from training.trainer.model import load_config
from vaswani.cli.shared.flags import at_least_one
from vaswani.interop.marian import check_has_marian, to_marian


SHORTLIST = 4096  # types of a vocabulary that is cut
# Seconds before each turn: the threads of the one before wait for more work for a while, and would take its cores.
PAUSE = 0.5


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``generate``."""
    group = parser.add_argument_group("generate")
    group.add_argument(
        "--model_config",
        default="base-en-de",
        help="a folder of hub_configs/, or one with a config.json (default: %(default)s)",
    )
    group.add_argument(
        "--batch_sentences",
        type=at_least_one,
        default=32,
        help="of a batch, of 10 to 40 tokens each (default: %(default)s)",
    )
    group.add_argument("--batches", type=at_least_one, help="batches of a turn; default: two for each core")
    group.add_argument(
        "--new_tokens", type=at_least_one, default=25, help="tokens of every translation (default: %(default)s)"
    )
    group.add_argument(
        "--beams",
        type=at_least_one,
        default=4,
        help="hypotheses of a beam search; greedy search is measured too (default: %(default)s)",
    )
    group.add_argument(
        "--turns",
        type=at_least_one,
        default=5,
        help="turns of every contender, after one to warm up (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Let all contenders take their turns, and return a row for each."""
    cores = usable_cores() if options.device == "cpu" else 1
    config = load_config(options.model_config)
    check_has_marian(config)
    torch.manual_seed(2017)
    work = Work.of(config, options.batches or 2 * cores, options.batch_sentences, options.new_tokens, options.device)
    shortlist = [0, *(torch.randperm(config.vocab_size - 2)[: SHORTLIST - 1] + 1).tolist()]  # 0 ends a sentence
    setup = Setup(config, work, options.beams, options.device, cores, shortlist)
    with tempfile.TemporaryDirectory() as folder:
        if has_ctranslate2():
            convert(to_marian(setup.model()), shortlist, Path(folder))
        with in_processes(makers(setup, Path(folder))) as contenders:
            seconds = take_turns([partial(seconds_of, each) for each in contenders], options.turns)
    rows = compare(contenders, [[work.tokens / each for each in taken] for taken in seconds])
    if not has_ctranslate2():
        rows.append(GenerationRow("CTranslate2: not installed: extra [dev]"))
    if options.device == "cpu":
        rows += measure_peaks(cores)
    model = setup.model()
    for beams in (1, options.beams):
        floor = gigaflops_per_token(model, work, beams)
        rows.append(GenerationRow("a token, GFLOP", search=search_of(beams), rates=Rates.of([floor])))
    return [as_record(row) for row in rows]


def makers(setup: Setup, folder: Path) -> list[Callable[[], list[Contender]]]:
    """Return functions that make contenders, each in a process of its own.

    Ours in float32 where bfloat16 is faster, transformers' own beam search of our model, and CTranslate2 in float32
    use the cores in one way only, and those with a part of the vocabulary in the faster one.
    """
    models = [ours_in_float32, ours, ours_in_int8, marian]
    entered: list[Callable[[], list[Contender]]] = [partial(model, setup) for model in models]
    if has_ctranslate2():
        settings = [("fp32", setup.workers or setup.threads), ("int8", setup.threads)]
        settings += [("int8", setup.workers)] if setup.workers else []
        entered += [partial(ctranslate2, precision, setting, setup, folder) for precision, setting in settings]
    return entered


def seconds_of(contender: Contender) -> float:
    """Let a contender take a turn, and return how long it took."""
    time.sleep(PAUSE)
    started = time.perf_counter()
    contender.translate()
    return time.perf_counter() - started


def compare(contenders: Sequence[Contender], rates: Sequence[Sequence[float]]) -> list[GenerationRow]:
    """Return a row for each contender, greedy search first, with the ratios of our best in each precision to it.

    Parameters
    ----------
    contenders : sequence of Contender
    rates : sequence of sequence of float
        Target tokens a second of every contender in every turn. Ratios are those of the same turn.
    """
    entries = sorted(zip(contenders, rates, strict=True), key=lambda entry: entry[0].beams)
    rows = []
    for contender, theirs in entries:
        ratios = {}
        for precision in ("bf16", "int8"):
            best = best_of_ours(entries, precision, contender)
            if best is not None:
                ratios[precision] = Rates.of([mine / other for mine, other in zip(best, theirs, strict=True)])
        rows.append(
            GenerationRow(
                what=f"{contender.name}, {contender.precision}",
                on=contender.setting,
                search=search_of(contender.beams),
                rates=Rates.of(theirs),
                bf16_is_times=ratios.get("bf16"),
                int8_is_times=ratios.get("int8"),
            )
        )
    return rows


def best_of_ours(
    entries: Sequence[tuple[Contender, Sequence[float]]], precision: str, peer: Contender
) -> Sequence[float] | None:
    """Return the rates of our best setting of the same search as the peer's, of as much of the vocabulary."""
    rates = [
        taken
        for contender, taken in entries
        if contender.is_ours
        and (contender.precision, contender.beams, contender.is_cut) == (precision, peer.beams, peer.is_cut)
    ]
    return max(rates, key=statistics.median, default=None)


def search_of(beams: int) -> str:
    """Name a search."""
    return f"beam {beams}" if beams > 1 else "greedy"


def measure_peaks(cores: int) -> list[GenerationRow]:
    """Return rows for the machine's large matrix products."""
    return [
        GenerationRow(
            f"matrix product, {precision}, GFLOP/s",
            on="1 core" if threads == 1 else f"{threads} cores",
            rates=Rates.of([peak]),
        )
        for (precision, threads), peak in peaks(cores).items()
    ]
