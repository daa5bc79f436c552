"""Learning curves, to plan with: quality over training, over the size of the text and over the size of the model.

  python training/curves.py --recipe training/recipes/multi30k-en-de.toml --list
  python training/curves.py --recipe training/recipes/multi30k-en-de.toml --shares 0.125,0.25,0.5,1
  python training/curves.py --recipe my.toml --configs my/small,my/large --output_dir runs/curves

Each run is the recipe's, with a share of its training pairs, or with another model; every flag of run.py may follow
and holds for all. Each is evaluated on its way at --eval_steps, and the finished model on validation and test. After
an interruption, the same command resumes. curves.md, curves.csv and curves.png are rewritten after every run.
"""

import argparse
import sys
from pathlib import Path

from training.data.corpora import load_text
from training.data.vocabulary import count_types
from training.recipe import parse_settings
from training.settings import TrainingSettings
from training.tables import command
from training.tables.curves.points import measure
from training.tables.curves.report import write_report
from training.tables.curves.rows import Row, make_rows, make_run, write_texts
from training.tables.flags import numbers, share
from training.tables.layout import align
from training.tables.metrics import logged_evaluations
from training.tables.sweep import Run, run_and_report
from vaswani.cli import Parser, exit_status
from vaswani.errors import UserError


# Flags of run.py that the curves set themselves, and why.
SET_BY_THE_CURVES = {
    "config_name": "--configs names the models",
    "max_train_samples": "--shares has them",
    "model_name_or_path": "its runs begin with new weights",
}


def main(arguments: list[str]) -> None:
    """List the runs, or do them and write the curves."""
    options, flags = parse(arguments)
    settings = parse_settings([str(options.recipe), *flags])
    command.check_translates(settings.data)
    command.check_starts_anew(settings.model)
    steps, last = settings.run.eval_steps, settings.optimization.max_steps - 1
    if not 1 <= steps <= last:
        raise UserError(f"eval_steps={steps} must be from 1 to {last:,}: a learning curve has points on the way")
    rows = make_rows(options.shares, options.configs or [settings.model.config_name or ""])
    if options.list:
        print(list_rows(rows, settings))
        return
    with command.reporting(options, "curves.md"):
        text = load_text(settings.data, options.output_dir / "texts" / "corpus")
        write_texts(rows, text, settings, options.output_dir / "texts")
        runs = [make_run(row, settings, options.output_dir) for row in rows]
        draw_curves(rows, runs, options)


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Read our flags; return the others, which are those of run.py."""
    parser = Parser(description=__doc__)
    parser.add_argument("--recipe", type=Path, required=True, help="of all runs")
    parser.add_argument(
        "--shares",
        type=numbers(share),
        default="0.125,0.25,0.5,1",
        help="of the training pairs; a run for each, and for all (default: %(default)s)",
    )
    parser.add_argument(
        "--configs",
        type=lambda names: names.split(","),
        help="models, with commas between; the first gets the shares (default: the recipe's)",
    )
    return command.parse(parser, "curves", arguments, SET_BY_THE_CURVES)


def list_rows(rows: list[Row], settings: TrainingSettings) -> str:
    """Write what each run will be."""
    updates = f"{settings.optimization.max_steps:,}"
    return align(["run", "model", "text", "updates"], [[r.folder, r.config, f"{r.share:.4g}", updates] for r in rows])


def draw_curves(rows: list[Row], runs: list[Run], options: argparse.Namespace) -> None:
    """Do the runs that are not finished, and write the curves after each."""
    for run in runs:
        run.check()

    def write_curves() -> None:
        points = [measure(row, one) for row, one in zip(rows, runs, strict=True) if one.is_finished]
        write_report(points, describe_conditions(runs), options.command, options.output_dir)

    def result(run: Run) -> str:
        return f"BLEU {logged_evaluations(run.directory, 'test')[-1]['sacrebleu']:.2f} on test"

    run_and_report(runs, options.jobs, result, write_curves)


def describe_conditions(runs: list[Run]) -> str:
    """Say under which conditions the models were trained and scored."""
    finished = next((run for run in runs if run.is_finished), None)
    tokenizer = runs[0].settings.model.tokenizer_name
    vocabulary = "each has a vocabulary of its own" if tokenizer is None else f"all have the vocabulary of {tokenizer}"
    said = f"Shares of the text are drawn at random, and {vocabulary}."
    if finished is None:
        return said
    given = finished.settings
    count = sum(run.is_finished for run in runs)
    tokens, types = given.optimization.max_tokens_per_batch, count_types(given.model)
    return (
        f"{said} At most {given.optimization.max_steps:,} updates of at most {tokens:,} tokens, vocabulary {types:,}, "
        f"seed {given.optimization.seed}. {finished.where_and_when}. {count} of {len(runs)} runs are finished."
    )


if __name__ == "__main__":
    sys.exit(exit_status(lambda: main(sys.argv[1:])))
