"""Table 4 of the paper: parsers trained on shares of a treebank, beside floors on the same sentences.

  python training/table4.py --treebank ../shared/data/treebank --list
  python training/table4.py --treebank ../shared/data/treebank --output_dir runs/table4
  python training/table4.py --treebank data/wsj --recipe training/recipes/parser-wsj.toml --shares 1

Each parser is trained by the recipe; every flag of run.py may follow and holds for all. It is scored as EVALB scores,
by three searches: one that may write anything, of which what is no tree is repaired; one that may write nothing but
trees; and one that may also give words only the parts of speech that the training trees have for them. The floors are
trees that branch to the right and grammars that are read off the same treebank. After an interruption, the same
command resumes. table4.md, table4.csv and table4.png are rewritten after every parser.
"""

import argparse
import sys
from pathlib import Path

from training.data.vocabulary import count_types
from training.recipe import parse_settings
from training.settings import ROOT
from training.tables import command
from training.tables.cost import flops_per_target_token
from training.tables.flags import check_shares, numbers, share
from training.tables.layout import align
from training.tables.metrics import logged_updates, seconds_of_training
from training.tables.parsing.measuring import KNOWN_TAGS, SEARCHES, as_text, floors, measure_parser
from training.tables.parsing.report import Result, write_report
from training.tables.parsing.rows import Row, checksums, make_rows, write_treebank
from training.tables.sweep import Run, run_and_report
from training.trainer.model import load_config
from vaswani.cli import Parser, exit_status
from vaswani.errors import UserError
from vaswani.models.trees_vaswani import Tree
from vaswani.parsing.treebank import PREFIX, find_files, read_trees


# Flags of run.py that the table sets itself, and why.
SET_BY_THE_TABLE = {
    "dataset_name": "--treebank names it",
    "train_file": "--treebank names the trees",
    "max_train_samples": "--shares has them",
    "max_eval_samples": "each search, and each floor, is scored on all trees",
    "model_name_or_path": "its parsers begin with new weights",
}


def main(arguments: list[str]) -> None:
    """List the parsers, or train them, score them and write the table."""
    options, flags = parse(arguments)
    splits = {
        split: [tree for path in paths for tree in read_trees(path)]
        for split, paths in find_files(options.treebank).items()
    }
    check_shares(options.shares, len(splits["train"]), "training trees")
    rows = make_rows(options.shares, options.plain)
    runs = [make_run(row, options, flags) for row in rows]
    if options.list:
        print(list_rows(rows, runs, splits))
        return
    with command.reporting(options, "table4.md"):
        fill_table(rows, runs, splits, options)


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Read our flags; return the others, which are those of run.py."""
    parser = Parser(description=__doc__)
    parser.add_argument("--treebank", required=True, metavar="DIR", help="as for dataset_name=treebank:DIR")
    parser.add_argument(
        "--recipe",
        type=Path,
        default=ROOT / "training" / "recipes" / "parser-small.toml",
        help="of all parsers (default: parser-small.toml)",
    )
    parser.add_argument(
        "--shares",
        type=numbers(share),
        default="0.25,0.5,1",
        help="of the training split; a parser for each (default: %(default)s)",
    )
    parser.add_argument(
        "--plain", action="store_true", help="one parser more, of all trees without any that are made of their parts"
    )
    return command.parse(parser, "table4", arguments, SET_BY_THE_TABLE)


def make_run(row: Row, options: argparse.Namespace, flags: list[str]) -> Run:
    """Plan the training of a row's parser."""
    treebank = options.output_dir / "treebanks" / row.folder
    arguments = [str(options.recipe), f"--dataset_name={PREFIX}{treebank}"]
    arguments += [f"--output_dir={options.output_dir / row.folder}", *flags]
    if row.is_plain:
        arguments += ["--treebank_parts=0", "--treebank_made=0"]
    settings = parse_settings(arguments)
    command.check_starts_anew(settings.model)
    for name in ("max_train_samples", "max_eval_samples"):
        if (given := getattr(settings.data, name)) is not None:
            raise UserError(f"{name}={given} must not stand in the recipe: {SET_BY_THE_TABLE[name]}")
    optimization = settings.optimization
    config = load_config(settings.model.config_name)
    config.vocab_size = count_types(settings.model)
    cost = optimization.max_steps * optimization.max_tokens_per_batch * flops_per_target_token(config)
    return Run(row.folder, arguments, settings, cost)


def list_rows(rows: list[Row], runs: list[Run], splits: dict[str, list[Tree]]) -> str:
    """Write what each parser will be trained on, and at which cost."""
    count = len(splits["train"])
    lines = []
    for row, run in zip(rows, runs, strict=True):
        trees, updates = round(row.share * count), run.settings.optimization.max_steps
        lines.append([row.name, f"{trees:,}", f"{updates:,}", f"{run.cost:.1e}"])
    return align(["trained on", "trees", "updates", "training FLOPs"], lines)


def fill_table(rows: list[Row], runs: list[Run], splits: dict[str, list[Tree]], options: argparse.Namespace) -> None:
    """Measure the floors, train what is not finished, and write the table after each parser."""
    command.check_origin(checksums(splits), options.output_dir / "treebanks")
    for row, run in zip(rows, runs, strict=True):
        run.check()
        treebank = run.settings.data.dataset_name or ""
        write_treebank(row, splits, Path(treebank.removeprefix(PREFIX)), run.settings.optimization.seed)
    split = "test" if "test" in splits else "validation"
    text, count = as_text(split, splits[split]), len(splits["train"])
    measured = floors(options.output_dir, splits["train"], split, splits[split])
    of_floors = [Result(name, "", count, evaluation) for name, evaluation in measured.items()]

    def write_table() -> None:
        found = list(of_floors)
        for row, run in zip(rows, runs, strict=True):
            if run.is_finished:
                trees, seconds = round(row.share * count), seconds_of_training(logged_updates(run.directory))
                for search in SEARCHES:
                    found.append(Result(row.name, search, trees, measure_parser(run, text, search), seconds, row))
        write_report(found, describe_conditions(runs, splits, split), options.command, options.output_dir)

    def result(run: Run) -> str:
        return f"F1 {measure_parser(run, text, KNOWN_TAGS).bracketing_f1:.2f}"

    run_and_report(runs, options.jobs, result, write_table)


def describe_conditions(runs: list[Run], splits: dict[str, list[Tree]], split: str) -> str:
    """Say under which conditions the parsers were trained and scored."""
    said = (
        f"Scored on {len(splits[split]):,} trees of {split} by the rules of EVALB with COLLINS.prm; errors are "
        "sentences that it does not compare. Free: what the search wrote, repaired where it was no tree; well-formed "
        "is the percentage that needed no repair. Trees only: the search could write nothing else. Known tags: nor "
        "parts of speech that the training trees do not have for the word, if they have the word."
    )
    finished = next((run for run in runs if run.is_finished), None)
    if finished is None:
        return said
    optimization = finished.settings.optimization
    return (
        f"{said} {optimization.max_steps:,} updates of about {optimization.max_tokens_per_batch:,} target tokens, "
        f"vocabulary {count_types(finished.settings.model):,}, seed {optimization.seed}. {finished.where_and_when}."
    )


if __name__ == "__main__":
    sys.exit(exit_status(lambda: main(sys.argv[1:])))
