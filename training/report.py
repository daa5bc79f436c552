"""Show runs: curves, results, cost, sentences and settings on one page, which opens from disk without a network.

  python training/report.py runs/mine
  python training/report.py runs/mine runs/other --output compared.html

The page of one run is its report.html; a run writes it by itself when it ends. Of a run that is under way it shows how
far that is. Beside the page, a folder of its name has each drawing as SVG and PNG.
"""

import sys
from pathlib import Path

from training.reports.page import write_report
from training.reports.records import read_runs
from vaswani.cli import Parser, exit_status
from vaswani.cli.shared.outputs import cannot_be_written
from vaswani.errors import UserError


def main(arguments: list[str]) -> None:
    """Write the report, and say where."""
    parser = Parser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR", help="output directory of training/run.py")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE.html",
        help="the page (default: RUN_DIR/report.html; of several runs, report.html)",
    )
    options = parser.parse_args(arguments)
    path = options.output or (options.runs[0] / "report.html" if len(options.runs) == 1 else Path("report.html"))
    if path.suffix != ".html":
        raise UserError(f"output={str(path)!r} must end in .html")
    runs = read_runs(options.runs)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_report(runs, path)
    except OSError as error:
        raise cannot_be_written("output", str(path), error) from error
    print(f"Written: {path}")


if __name__ == "__main__":
    sys.exit(exit_status(lambda: main(sys.argv[1:])))
