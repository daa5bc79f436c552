"""`vaswani evaluate` with the grammar: the dataset that this repository generates.

python training/evaluation.py --model runs/demo/model --dataset_name grammar --split test
python training/evaluation.py --help
"""

import sys

from training.data.corpora import load_split
from vaswani.cli import Parser, evaluate, exit_status


def main(arguments: list[str]) -> None:
    """Read the flags and run the command.

    Raises
    ------
    UserError
        If a flag is unknown, has a value that is not allowed, or the flags do not go together.
    """
    parser = Parser(
        prog="training/evaluation.py",
        description=f"{evaluate.__doc__}\n--dataset_name grammar is the demo's own text.",
    )
    evaluate.add_flags(parser)
    evaluate.run(parser.parse_args(arguments), load_split)


if __name__ == "__main__":
    sys.exit(exit_status(lambda: main(sys.argv[1:])))
