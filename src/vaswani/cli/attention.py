"""Show what a model attends to while it translates a sentence: lines, heat maps, alignment, and what each head does.

  vaswani attention --model runs/demo/model "The animal didn't cross the street because it was too tired."
  vaswani attention --model me/my-model "A sentence." --target "Ein Satz." --output attention.html
  vaswani attention --model me/my-model "A sentence." --output heads.svg --kind cross --layer 6 --heads 1,2,5 --words
  vaswani attention --model me/my-model "A sentence." --output heads.png --kind encoder --layer 5 --as map
  vaswani attention --model me/my-model "A sentence." --output moving.svg --as motion

The page opens from disk without a network: choose attention, layer and heads there. A figure shows one layer; its
lines are those of the paper's Figures 3 to 5; it needs the extra [figures]. A translation in motion is one drawing
that moves by itself: word after word, with the mean of all layers and heads.
"""

import argparse
from pathlib import Path

from transformers.utils.logging import disable_progress_bar

from vaswani.errors import UserError, missing_package
from vaswani.pictures.attention import CROSS, KINDS, Attention, join_words, read_attention
from vaswani.pictures.attention_motion import draw_motion
from vaswani.pictures.attention_page import attention_page

from .shared.flags import add_decoding_flags, add_model_flags, at_least_one, decoding
from .shared.loading import load_model
from .shared.outputs import cannot_be_written


ENDINGS = (".html", ".png", ".svg")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add all flags of the command."""
    parser.add_argument("sentence", help="what the model reads")
    parser.add_argument("--model", required=True, metavar="DIR_OR_HUB_ID", help="a published model")
    parser.add_argument("--target", metavar="TEXT", help="what it writes (default: its own translation)")
    parser.add_argument(
        "--output", type=Path, default=Path("attention.html"), metavar="FILE.html|png|svg", help="default: %(default)s"
    )
    figure = parser.add_argument_group("what a figure shows; the page shows everything")
    figure.add_argument("--kind", choices=list(KINDS), help="whose attention (default: cross)")
    figure.add_argument("--layer", type=at_least_one, metavar="N", help="from 1 (default: the last)")
    figure.add_argument("--heads", metavar="N,N,...", help="from 1 (default: all)")
    figure.add_argument("--words", action="store_true", help="join word pieces")
    figure.add_argument("--as", dest="form", choices=["lines", "map", "motion"], help="default: lines")
    add_decoding_flags(parser)
    add_model_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Write the page or the figure, and return the exit status.

    Raises
    ------
    UserError
        If the flags do not fit the model or the output, or this cannot be written.
    """
    check(options)
    disable_progress_bar()  # transformers' own, at loading
    model, tokenizer = load_model(options)
    attention = read_attention(model, tokenizer, options.sentence, options.target, **decoding(options))
    try:
        if options.form == "motion":
            options.output.write_text(draw_motion(attention), encoding="utf-8")
        elif options.output.suffix == ".html":
            options.output.write_text(attention_page(attention, f"Attention of {options.model}"), encoding="utf-8")
        else:
            write_figure(attention, options)
    except OSError as error:
        raise cannot_be_written("output", str(options.output), error) from error
    print(f"Written: {options.output}")
    return 0


def check(options: argparse.Namespace) -> None:
    """Refuse flags that do not go together, before anything is loaded."""
    ending = options.output.suffix
    if ending not in ENDINGS:
        raise UserError(f"output={str(options.output)!r} must end in {', '.join(ENDINGS)}")
    of_figures = [name for name in ("kind", "layer", "heads", "words", "form") if getattr(options, name)]
    if ending == ".html" and of_figures:
        raise UserError(f"{of_figures[0]} is for figures: the page has all of them to choose from")
    if options.form == "motion":
        others = [name for name in of_figures if name not in ("words", "form")]
        if ending != ".svg" or others:
            named = f"output={str(options.output)!r}" if ending != ".svg" else others[0]
            raise UserError(f"{named} is not for --as motion, an .svg of encoder-decoder attention as a whole")
    if options.target is not None and (of_search := list(decoding(options))):
        raise UserError(f"{of_search[0]} is for the model's own translation, but there is a target")


def write_figure(attention: Attention, options: argparse.Namespace) -> None:
    """Draw the chosen layer and heads.

    Raises
    ------
    UserError
        If the model does not have them, or matplotlib is missing.
    """
    try:
        from vaswani.pictures import attention_figures
    except ModuleNotFoundError as error:
        raise missing_package(f"output={str(options.output)!r}", error.name, "figures") from error
    kind = options.kind or CROSS
    if kind not in attention.weights:
        raise UserError(f"kind={kind!r} must be one that this model has: {', '.join(attention.weights)}")
    layers, heads = attention.weights[kind].shape[:2]
    layer = options.layer or layers
    if layer > layers:
        raise UserError(f"layer={layer} must be at most {layers}, the layers of this model")
    chosen = range(heads) if options.heads is None else read_heads(options.heads, heads)
    drawn = attention_figures.draw_map if options.form == "map" else attention_figures.draw_lines
    figure = drawn(join_words(attention) if options.words else attention, kind, layer - 1, chosen)
    attention_figures.save(figure, options.output)


def read_heads(text: str, count: int) -> list[int]:
    """Return the numbers of heads, from 0.

    Raises
    ------
    UserError
        If one is no number from 1 to `count`.
    """
    numbers = text.split(",")
    if not all(number.isdecimal() and 1 <= int(number) <= count for number in numbers):
        raise UserError(f"heads={text!r} must be numbers from 1 to {count} with commas between")
    return [int(number) - 1 for number in dict.fromkeys(numbers)]
