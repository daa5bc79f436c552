"""Table 1 of the paper, measured: what self-attention, recurrence and convolution cost, and how far signals must go.

  python training/table1.py
  python training/table1.py --layers self-attention,recurrent,lstm --widths 64,256,1024
  python training/table1.py --lengths 256,1024,4096 --restrictions 32,128 --kernels 3,7 --batch_size 1

Operations, sequential operations and path lengths are counted; times and memory are measured over the grid of n, d, k
and r. Section 3.2.1's argument for dividing by the root of d_k is measured beside. It takes minutes, and leaves
table1.md, table1.csv, table1.png and table1.svg.
"""

import argparse
import shlex
import sys
import time
from pathlib import Path

import torch

from training.machine import check_device, describe_hardware, usable_cores
from training.tables.complexity.measuring import Grid, measure_all
from training.tables.complexity.report import write_report
from training.tables.complexity.rows import ROWS
from training.tables.flags import choose, numbers
from training.tables.layout import for_terminal
from training.trainer.run_directory import make_output_dir
from vaswani.cli import Parser, exit_status
from vaswani.cli.shared.flags import at_least_one
from vaswani.errors import UserError


def main(arguments: list[str]) -> None:
    """Measure, write the table, and print it."""
    options = parse(arguments)
    grid = make_grid(options)
    folder = make_output_dir(options.output_dir)
    torch.set_num_threads(options.threads)
    records = measure_all(grid)
    command = shlex.join(["python", "training/table1.py", *arguments])
    print(for_terminal(write_report(records, grid, describe_conditions(command, grid), folder)))


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the flags."""
    parser = Parser(description=__doc__)
    parser.add_argument("--layers", default="all", help=f"names with commas between, or 'all': {', '.join(ROWS)}")
    for name, least, default, what in (
        ("lengths", 2, "64,128,256,512,1024,2048", "n: positions of a sequence"),
        ("widths", 1, "64,128,256,512", "d: width of a layer"),
        ("kernels", 3, "3,5,9", "k: width of a convolution's kernel, odd"),
        ("restrictions", 1, "32,64", "r: neighborhood of restricted self-attention"),
    ):
        what += " (default: %(default)s)"
        parser.add_argument(f"--{name}", type=numbers(int, least), default=default, help=what)
    parser.add_argument(
        "--batch_size", type=at_least_one, default=2, help="sequences at a time (default: %(default)s)"
    )
    parser.add_argument("--threads", type=at_least_one, default=torch.get_num_threads(), help="of the CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument(
        "--output_dir", type=Path, default=Path("runs/table1"), help="where the table goes (default: %(default)s)"
    )
    return parser.parse_args(arguments)


def make_grid(options: argparse.Namespace) -> Grid:
    """Check the flags and return what is to be measured.

    Raises
    ------
    UserError
        If one of them has a value that is not allowed.
    """
    rows = choose("layers", options.layers, ROWS)
    names = ("lengths", "widths", "kernels", "restrictions")
    lengths, widths, kernels, restrictions = (sorted(getattr(options, name)) for name in names)
    for kernel in kernels:
        if kernel % 2 == 0:
            raise UserError(f"kernels={kernel} must be odd, so that a position is in the middle of its kernel")
    for name, largest in (("kernels", kernels[-1]), ("restrictions", restrictions[-1])):
        if largest > lengths[0]:
            raise UserError(f"{name}={largest} must be at most the shortest of lengths, {lengths[0]}")
    if options.threads > usable_cores():
        raise UserError(f"threads={options.threads} must be at most {usable_cores()}, the cores of this machine")
    check_device(options.device)
    return Grid(rows, lengths, widths, kernels, restrictions, options.batch_size, torch.device(options.device))


def describe_conditions(command: str, grid: Grid) -> str:
    """Say in Markdown what was run, and where."""
    machine = describe_hardware(grid.device)
    count = torch.get_num_threads()
    threads = f", {count} thread{'s' * (count > 1)}" if grid.device.type == "cpu" else ""
    return (
        f"`{command}`\n\n{machine}{threads}, float32, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}. "
        f"Batches of {grid.batch} sequences."
    )


if __name__ == "__main__":
    sys.exit(exit_status(lambda: main(sys.argv[1:])))
