"""Planning speed: an epoch of as many pairs as the paper's corpora have, from simulated lengths alone."""

import argparse
import json
import sys
import time
from typing import Any

import numpy as np

from training.benchmarks.processes import run_and_watch
from training.benchmarks.records import GIGA, PlanningRow, as_record
from training.data.batch_plan import cut, padded_tokens, plan_epoch
from vaswani.cli.shared.flags import at_least_one


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``plan``."""
    group = parser.add_argument_group("plan")
    group.add_argument(
        "--pairs",
        type=at_least_one,
        nargs="+",
        default=[4_500_000, 36_000_000],
        help="sizes of corpora (default: EN-DE's and EN-FR's)",
    )
    group.add_argument(
        "--groups", type=at_least_one, nargs="+", default=[1, 8], help="length_groups to try (default: 1 8)"
    )


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Plan an epoch of every size, each in a process of its own; return a row for each."""
    rows = []
    for pairs in options.pairs:
        for groups in options.groups:
            output, peak_bytes = run_and_watch([sys.executable, "-m", __name__, str(pairs), str(groups)])
            rows.append(PlanningRow(**json.loads(output), peak_memory=peak_bytes / GIGA))
    return [as_record(row) for row in rows]


def simulate_lengths(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw (count,) source and target lengths spread as those of WMT14's sentences, in tokens with ``</s>``."""
    generator = np.random.default_rng(2017)
    source = np.exp(3.2 + 0.6 * generator.standard_normal(count, dtype=np.float32))
    ratio = np.exp(0.2 * generator.standard_normal(count, dtype=np.float32))
    return source.clip(2, 256).astype(np.int32), (source * ratio).clip(2, 256).astype(np.int32)


def measure(count: int, length_groups: int) -> dict[str, Any]:
    """Plan an epoch at the paper's budget, and cut up to 500 of its updates into micro-batches, as one device does.

    Returns
    -------
    dict
        The fields of `PlanningRow`, except for the memory.
    """
    lengths = simulate_lengths(count)
    before = time.perf_counter()
    plan = plan_epoch(*lengths, max_tokens=25_000, seed=2017, epoch=0, length_groups=length_groups)
    seconds = time.perf_counter() - before
    batches = [batch for index in range(min(500, len(plan))) for batch in cut(plan[index], *lengths, 8192)]
    real = sum(side[batch].sum() for batch in batches for side in lengths)
    padded = sum(padded_tokens(batch, *lengths).sum() for batch in batches)
    return {
        "pairs": f"{count:,}",
        "length_groups": length_groups,
        "updates": f"{len(plan):,}",
        "seconds": seconds,
        "real_tokens": 100 * float(real / padded),
    }


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:]))))
