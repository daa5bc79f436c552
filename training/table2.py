"""Table 2 of the paper, at equal cost: train the Transformer and what it replaced, and compare them.

  python training/table2.py --list
  python training/table2.py --output_dir runs/table2
  python training/table2.py --scale 0.25 --flops 5e13 --seeds 2017,2018 --jobs 2 ...    (in full in docs/table2.md)

Every system gets the same training FLOPs (or target tokens, or minutes), text, vocabulary, loop and search for
translations, and the same small search for its learning rate. Every flag of run.py may follow and holds for all runs.
After an interruption, the same command resumes. table2.md, table2.csv and table2.png are rewritten after every run.
"""

import argparse
import sys

from training.data.preparation import prepare
from training.tables import command
from training.tables.flags import above_zero, choose, numbers, share
from training.tables.scaling import write_scaled_config
from training.tables.sweep import Run, run_and_report
from training.tables.systems.catalogue import SYSTEMS
from training.tables.systems.plan import Plan, perplexity
from training.tables.systems.records import collect
from training.tables.systems.report import list_plan, write_report
from training.tables.systems.translations import Decoding, decode
from vaswani.cli import Parser, exit_status
from vaswani.cli.shared.flags import at_least_one
from vaswani.errors import UserError
from vaswani.scoring.references import EvaluationSet


# Flags of run.py that the table sets itself, and why.
SET_BY_THE_TABLE = {
    "config_name": "each system has its own",
    "seed": "--seeds has them all",
    "learning_rate_factor": "--learning_rate_factors has those that each system tries",
    "average_checkpoints": "each system's recipe says it",
    "save_total_limit": "it follows from average_checkpoints",
    "model_name_or_path": "its systems begin with new weights",
    "max_steps": "it follows from --flops, --target_tokens or --minutes",
    "early_stopping_patience": "every system gets all of the budget",
}


def main(arguments: list[str]) -> None:
    """List the systems, or train them, translate with them and write the table."""
    options, flags = parse(arguments)
    systems = choose("systems", options.systems, SYSTEMS)
    command.check_translates(systems[0].settings(*flags).data)
    plan = Plan(systems, options, flags)
    if options.list:
        print(list_plan(plan))
        return
    with command.reporting(options, "table2.md"):
        compare_systems(plan)


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Read our flags; return the others, which are those of run.py."""
    parser = Parser(description=__doc__)
    parser.add_argument("--systems", default="all", help=f"names with commas between, or 'all': {', '.join(SYSTEMS)}")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument(
        "--flops", type=above_zero, help="training FLOPs of each system (default: those of base's recipe)"
    )
    budget.add_argument("--target_tokens", type=at_least_one, help="target tokens of each system, instead")
    budget.add_argument(
        "--minutes", type=above_zero, help="minutes of training of each system, instead, as each is timed"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="make all models smaller: a multiple of 1/16, at most 1"
    )
    parser.add_argument(
        "--seeds", type=numbers(int), default="2017", help="one run each, with commas between (default: %(default)s)"
    )
    parser.add_argument(
        "--learning_rate_factors",
        type=numbers(float),
        default="0.5,1,2",
        help="each system tries these, then half the lowest or twice "
        "the highest while that is the best; one alone means no search (default: %(default)s)",
    )
    parser.add_argument(
        "--search_share",
        type=share,
        default=0.1,
        help="share of its updates for which a system tries each factor (default: %(default)s)",
    )
    return command.parse(parser, "table2", arguments, SET_BY_THE_TABLE)


def compare_systems(plan: Plan) -> None:
    """Train what is not finished, and write the table after each final run."""
    options = plan.options
    if options.scale != 1:
        for entry in plan.entries:
            write_scaled_config(entry.system.config, options.scale, plan.config_folder(entry.system))
    settings = plan.entries[0].system.settings(*plan.flags)
    prepared = prepare(settings.data, settings.model, options.output_dir)
    split = "test" if "test" in prepared.text else "validation"
    sides = ([sentence or "" for sentence in prepared.text[split][side]] for side in ("source", "target"))
    text = EvaluationSet(split, split, *sides)

    timed = plan.runs_to_time()
    train(timed, options.jobs)
    plan.set_steps(timed)
    search(plan, options.jobs)
    plan.choose()
    runs = plan.plan_runs()
    decodings: dict[str, Decoding] = {}

    def write_table() -> None:
        table = collect(plan, text, decodings, settings.data.target_lang, settings.data.tokenized)
        write_report(plan, table, text, options.output_dir, options.command)

    write_table()
    train(runs, options.jobs)
    for run in runs:  # one after another, so that each is timed with the whole machine
        decodings[run.name] = decode(run, text)
        write_table()


def search(plan: Plan, jobs: int) -> None:
    """Train what the search for learning rates asks for, until it asks for no more.

    A rate with which a run diverges is no error, but the worst of all.
    """
    while tried := plan.plan_search():
        try:
            train(tried, jobs)
        except UserError:
            if not all(run.is_finished or run.has_diverged for run in tried):
                raise


def train(runs: list[Run], jobs: int) -> None:
    """Train what is not finished of these runs, and say what each reached."""
    for run in runs:
        run.check()
    if runs:
        run_and_report(runs, jobs, lambda run: f"perplexity {perplexity(run):.2f} on validation")


if __name__ == "__main__":
    sys.exit(exit_status(lambda: main(sys.argv[1:])))
