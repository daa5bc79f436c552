"""Table 3 of the paper: train any of its rows, and set each beside what the paper reports.

  python training/table3.py --list
  python training/table3.py --rows base,A-h1,B-k16 --list --json
  python training/table3.py --output_dir runs/table3 --seeds 2017,2018
  python training/table3.py --scale 0.25 --budget 2200000 --jobs 2 ...    (in full in docs/table3.md)

A row is trained by its recipe; every flag of run.py may follow and holds for all rows. After an interruption, the same
command resumes: runs that are finished stay. table3.md, table3.csv and table3.png are rewritten after every run.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from training.data.preparation import prepare
from training.recipe import names_of
from training.tables import command
from training.tables.flags import choose, flags_of_a_length, numbers
from training.tables.layout import align
from training.tables.records import Description, describe_row, measure
from training.tables.report import RunsOfRows, tables, write_report
from training.tables.rows import ROWS, Row
from training.tables.scaling import write_scaled_config
from training.tables.sweep import Run, run_and_report
from training.trainer.model import load_config
from vaswani.cli import Parser, exit_status
from vaswani.errors import UserError


# Flags of run.py that the table sets itself, and why.
SET_BY_THE_TABLE = {
    "config_name": "each row has its own",
    "label_smoothing": "each row has its own",
    "average_checkpoints": "each row has its own",
    "model_name_or_path": "its rows begin with new weights",
    "max_steps": "--budget sets it for all rows",
    "seed": "--seeds has them all",
}


def main(arguments: list[str]) -> None:
    """List the rows, or train them and write the table."""
    options, flags = parse(arguments)
    rows = choose("rows", options.rows, ROWS)
    command.check_translates(rows[0].settings(*flags).data)
    runs = {row.name: [make_run(row, seed, options, flags) for seed in options.seeds] for row in rows}
    described = [describe_row(row, options.scale, runs[row.name][0]) for row in rows]
    for description in described:
        for run in runs[description.row]:
            run.cost = description.training_flops
    if options.list:
        records = [asdict(description) for description in described]
        print(json.dumps(records, indent=1) if options.json else tables(records, align))
        return
    with command.reporting(options, "table3.md"):
        fill_table(described, rows, runs, options)


def fill_table(described: list[Description], rows: list[Row], runs: RunsOfRows, options: argparse.Namespace) -> None:
    """Train the runs that are not finished, and write the table after each."""
    planned = [run for row in rows for run in runs[row.name]]
    for run in planned:
        run.check()
    for row in rows:
        config_name = str(runs[row.name][0].settings.model.config_name)
        if options.scale != 1:
            write_scaled_config(row.config, options.scale, Path(config_name))
        load_config(config_name)
    first = planned[0].settings  # all runs find its vocabulary and pairs in the cache
    prepare(first.data, first.model, first.run.grammar_folder)

    def write_table() -> None:
        write_report(described, runs, options.output_dir, options.command)

    def result(run: Run) -> str:
        measured = measure(run)
        return f"perplexity {measured.perplexity:.2f}, BLEU {measured.bleu:.2f}"

    run_and_report(planned, options.jobs, result, write_table)


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Read our flags; return the others, which are those of run.py."""
    parser = Parser(description=__doc__)
    parser.add_argument("--rows", default="all", help=f"names with commas between, or 'all': {', '.join(ROWS)}")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="make all models smaller: a multiple of 1/16, at most 1"
    )
    parser.add_argument(
        "--budget",
        type=int,
        help="target tokens to train the base row on; rows that the paper trained longer get as many times more "
        "(big: 3). Default: their recipes' max_steps",
    )
    parser.add_argument(
        "--seeds",
        type=numbers(int),
        default="2017",
        help="one run each of every row, with commas between (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="with --list: as JSON")
    options, flags = command.parse(parser, "table3", arguments, SET_BY_THE_TABLE)
    if options.json and not options.list:
        raise UserError("--json says how --list prints the rows: give both")
    return options, flags


def make_run(row: Row, seed: int, options: argparse.Namespace, flags: list[str]) -> Run:
    """Plan the run of a row with a seed; that of the first seed has the row's name, so that more can be added later.

    Raises
    ------
    UserError
        If the budget does not suffice for one update, or run.py would refuse the flags.
    """
    name = row.name if seed == options.seeds[0] else f"{row.name}-{seed}"
    ours = [f"--output_dir={options.output_dir / name}", f"--seed={seed}"]
    if options.scale != 1:
        ours.append(f"--config_name={options.output_dir / 'configs' / row.name}")
    recipe, base = row.settings(*flags), ROWS["base"].settings(*flags)
    if options.budget is not None:
        steps = options.budget // base.optimization.max_tokens_per_batch
        if steps < 1:
            raise UserError(
                f"budget={options.budget} target tokens do not suffice for one update of "
                f"max_tokens_per_batch={base.optimization.max_tokens_per_batch:,}"
            )
        steps = steps * recipe.optimization.max_steps // base.optimization.max_steps
        ours += flags_of_a_length(steps, recipe, names_of(flags))
    arguments = [*row.arguments(), *ours, *flags]
    return Run(name, arguments, row.settings(*ours, *flags), cost=0.0)


if __name__ == "__main__":
    sys.exit(exit_status(lambda: main(sys.argv[1:])))
