"""Measure how fast this project is, beside its peers, and what memory it takes, in one run on one machine.

python training/benchmark.py --json benchmark.json
python training/benchmark.py plan
python training/benchmark.py train --rounds 5 --tokens 100000
python training/benchmark.py generate --turns 10
python training/benchmark.py engines --engine_model runs/demo/model --engine_source test.en
python training/benchmark.py start --starts 10
python training/benchmark.py memory --picture docs/memory.svg
python training/benchmark.py train --device cuda --config_name base-en-de
"""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from training.benchmarks import engines, generation, memory, planning, start, training
from training.machine import PACKAGES, check_device, describe_hardware, installed_version
from training.tables.layout import align
from vaswani.cli import exit_status
from vaswani.cli.shared.outputs import check_outputs
from vaswani.errors import UserError


class Benchmark(NamedTuple):
    """A subcommand: a function that adds its flags, and one that runs it and returns the rows of its table."""

    add_flags: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], list[dict[str, Any]]]


BENCHMARKS = {
    "plan": Benchmark(planning.add_flags, planning.run),
    "train": Benchmark(training.add_flags, training.run),
    "generate": Benchmark(generation.add_flags, generation.run),
    "engines": Benchmark(engines.add_flags, engines.run),
    "start": Benchmark(start.add_flags, start.run),
    "memory": Benchmark(memory.add_flags, memory.run),
}

# What is measured on a CPU, whatever else there is, and why.
OF_A_CPU = {
    "engines": "not every engine computes on a GPU",
    "memory": "peaks are those of processes, not of a GPU",
}


def main(arguments: list[str]) -> None:
    """Run one benchmark or all; print a table of each and write everything as JSON."""
    options = parse(arguments)
    check_device(options.device)
    names = [options.benchmark] if options.benchmark else list(BENCHMARKS)
    for name in names:
        if name in OF_A_CPU and options.device != "cpu":
            raise UserError(f"device={options.device!r} must be cpu for {name}: {OF_A_CPU[name]}")
    picture = getattr(options, "picture", None)  # of one benchmark alone
    check_outputs({"--json": options.json, "--picture": None if picture is None else str(picture)}, {})
    report: dict[str, Any] = {
        "command": shlex.join(sys.argv),
        "date": time.strftime("%Y-%m-%d"),
        "hardware": describe_hardware(torch.device(options.device)),
        "versions": {package: installed_version(package) for package in PACKAGES},
    }
    for name in names:
        rows = BENCHMARKS[name].run(options)
        report[name] = rows
        print(
            f"\n{name}, {report['hardware']}, torch {torch.__version__}, {report['date']}\n{table(rows)}", flush=True
        )
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(report, file, indent=1)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the flags; without a subcommand those of all benchmarks are known, each with its default."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", help="file to write everything to")
    common.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    subparsers = parser.add_subparsers(dest="benchmark")
    for name, benchmark in BENCHMARKS.items():
        benchmark.add_flags(subparsers.add_parser(name, parents=[common]))
    if arguments and arguments[0] in (*BENCHMARKS, "-h", "--help"):
        return parser.parse_args(arguments)
    everything = argparse.ArgumentParser(parents=[common])
    for benchmark in BENCHMARKS.values():
        benchmark.add_flags(everything)
    return everything.parse_args(arguments, argparse.Namespace(benchmark=None))


def table(rows: list[dict[str, Any]]) -> str:
    """Align rows under the names of their keys; what a row lacks stays empty."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return align(keys, ([cell(row.get(key)) for key in keys] for row in rows))


def cell(value: Any) -> str:
    """Write a cell: large numbers without decimals, small ones with two; a median with what it lies between."""
    if value is None:
        return ""
    if isinstance(value, dict):
        median, lowest, highest = map(cell, value.values())
        return median if lowest == highest else f"{median} ({lowest}-{highest})"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
    return str(value)


if __name__ == "__main__":
    sys.exit(exit_status(lambda: main(sys.argv[1:])))
