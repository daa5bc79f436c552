"""Draw what the paper says in formulas: positional encoding, learning rate and label smoothing.

  python training/pictures.py
  python training/pictures.py --output_dir slides

Each is drawn from what the model and its training compute with, as SVG, which follows the light or dark theme of the
reader, and as PNG.
"""

import io
import sys
from pathlib import Path

import matplotlib
from PIL import Image

from training.explaining import label_smoothing, learning_rate, positional_encoding
from training.reports.curves import as_svg
from vaswani.cli import Parser, exit_status
from vaswani.cli.shared.outputs import cannot_be_written
from vaswani.pictures.look import MATPLOTLIB, stand_alone


PICTURES = {
    "positional-encoding": positional_encoding.draw,
    "learning-rate": learning_rate.draw,
    "label-smoothing": label_smoothing.draw,
}


def main(arguments: list[str]) -> None:
    """Draw all pictures, and say where they are."""
    parser = Parser(description=__doc__)
    parser.add_argument("--output_dir", type=Path, default=Path("docs"), help="folder of the pictures (default: docs)")
    folder = parser.parse_args(arguments).output_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in PICTURES:
            draw(name, folder)
            print(f"Written: {folder / name}.svg, {name}.png")
    except OSError as error:
        raise cannot_be_written("output_dir", str(folder), error) from error


def draw(name: str, folder: Path) -> None:
    """Write a picture as NAME.svg and NAME.png."""
    figure = PICTURES[name]()
    svg = stand_alone(as_svg(figure, name.replace("-", " ")))
    (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
    buffer = io.BytesIO()
    with matplotlib.rc_context(MATPLOTLIB):
        figure.savefig(buffer, dpi=100)
    image = Image.open(buffer).convert("RGB")
    image.quantize(256).save(folder / f"{name}.png", optimize=True)  # a palette takes a third of the space


if __name__ == "__main__":
    sys.exit(exit_status(lambda: main(sys.argv[1:])))
