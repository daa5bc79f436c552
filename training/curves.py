"""Learning curves, to plan with: quality over training, over the size of the text and over the size of the model.

  python training/curves.py --recipe training/recipes/multi30k-en-de.toml --list
  python training/curves.py --recipe training/recipes/multi30k-en-de.toml --shares 0.125,0.25,0.5,1
  python training/curves.py --recipe my.toml --configs my/small,my/large --output_dir runs/curves

Each run is the recipe's, with a share of its training pairs, or with another model; every flag of run.py may follow
and holds for all. Each is evaluated on its way at --eval_steps, and the finished model on validation and test. After
an interruption, the same command resumes. curves.md, curves.csv and curves.png are rewritten after every run.
"""

import argparse
import shlex
import sys
from pathlib import Path

from transformers.utils.logging import disable_progress_bar

from training.data.corpora import load_text
from training.data.preparation import count_types
from training.recipe import parse_settings
from training.settings import TrainingSettings
from training.tables.curves.points import measure
from training.tables.curves.report import write_report
from training.tables.curves.rows import Row, make_rows, make_run, write_texts
from training.tables.flags import check_run_flags, numbers
from training.tables.layout import align, for_terminal
from training.tables.metrics import logged_evaluations
from training.tables.sweep import Run, check_jobs, default_jobs, run_all
from training.trainer.run_directory import make_output_dir, own
from vaswani.cli import Parser
from vaswani.errors import UserError


# Flags of run.py that the curves set themselves, and why.
SET_BY_THE_CURVES = {
    "config_name": "--configs names the models",
    "max_train_samples": "--shares has them",
    "model_name_or_path": "its runs begin with new weights",
    "resume_from_checkpoint": "the same command resumes",
    "overwrite_output_dir": "the same command resumes",
}


def main(arguments: list[str]) -> None:
    """List the runs, or do them and write the curves."""
    options, flags = parse(arguments)
    settings = parse_settings([str(options.recipe), *flags])
    if not settings.run.eval_steps:
        raise UserError("eval_steps=0 must be at least 1: a learning curve has points on the way")
    rows = make_rows(options.shares, options.configs or [settings.model.config_name or ""])
    if options.list:
        print(list_rows(rows, settings))
        return
    check_jobs(options.jobs)
    with own(make_output_dir(options.output_dir)):
        text = load_text(settings.data, options.output_dir / "texts" / "corpus")
        write_texts(rows, text, settings, options.output_dir / "texts")
        runs = [make_run(row, settings, options.output_dir) for row in rows]
        draw_curves(rows, runs, options, shlex.join(["python", "training/curves.py", *arguments]))
    print(for_terminal((options.output_dir / "curves.md").read_text(encoding="utf-8")))


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Read our flags; return the others, which are those of run.py.

    Raises
    ------
    UserError
        If one of those is unknown or set by the curves, or a value of ours is not allowed.
    """
    parser = Parser(description=__doc__)
    parser.add_argument("--recipe", type=Path, required=True, help="of all runs")
    parser.add_argument(
        "--shares",
        default="0.125,0.25,0.5,1",
        help="of the training pairs; a run for each, and for all (default: %(default)s)",
    )
    parser.add_argument(
        "--configs", help="models, with commas between; the first gets the shares (default: the recipe's)"
    )
    parser.add_argument("--jobs", type=int, default=default_jobs(), help="at a time (default: one a GPU, or one)")
    parser.add_argument(
        "--output_dir",
        type=Path,
        default=Path("runs/curves"),
        help="a folder for each run, and the curves (default: %(default)s)",
    )
    parser.add_argument("--list", action="store_true", help="print the runs, and train nothing")
    options, flags = parser.parse_known_args(arguments)
    options.shares = numbers("shares", options.shares, float)
    options.configs = None if options.configs is None else options.configs.split(",")
    check_run_flags(flags, vars(options), SET_BY_THE_CURVES)
    return options, flags


def list_rows(rows: list[Row], settings: TrainingSettings) -> str:
    """Write what each run will be."""
    updates = f"{settings.optimization.max_steps:,}"
    return align(["run", "model", "text", "updates"], [[r.folder, r.config, f"{r.share:.4g}", updates] for r in rows])


def draw_curves(rows: list[Row], runs: list[Run], options: argparse.Namespace, command: str) -> None:
    """Do the runs that are not finished, and write the curves after each."""
    disable_progress_bar()
    for run in runs:
        run.check()

    def write_curves() -> None:
        points = [measure(row, one) for row, one in zip(rows, runs, strict=True) if one.is_finished]
        write_report(points, describe_conditions(runs), command, options.output_dir)

    def tell(run: Run) -> None:
        write_curves()
        if run.is_finished:
            score = logged_evaluations(run.directory, "test")[-1]["sacrebleu"]
            print(f"\n{run.name}: BLEU {score:.2f} on test", flush=True)

    write_curves()
    run_all(runs, options.jobs, tell)
    write_curves()


def describe_conditions(runs: list[Run]) -> str:
    """Say under which conditions the models were trained and scored."""
    finished = next((run for run in runs if run.is_finished), None)
    tokenizer = runs[0].settings.model.tokenizer_name
    vocabulary = "each has a vocabulary of its own" if tokenizer is None else f"all have the vocabulary of {tokenizer}"
    said = f"Shares of the text are drawn at random, and {vocabulary}."
    if finished is None:
        return said
    noted, given = finished.noted, finished.settings
    count = sum(run.is_finished for run in runs)
    tokens, types = given.optimization.max_tokens_per_batch, count_types(given.model)
    return (
        f"{said} At most {given.optimization.max_steps:,} updates of at most {tokens:,} tokens, vocabulary {types:,}, "
        f"seed {given.optimization.seed}. {noted['hardware']}, {noted['precision']}, torch {noted['torch']}, "
        f"{noted['date']}. {count} of {len(runs)} runs are finished."
    )


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
