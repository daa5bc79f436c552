"""Parse text, a sentence a line, from a file or pipe into a file or pipe.

  vaswani parse --model runs/parser-small/model --input news.en --output news.trees
  echo "The dog sleeps." | vaswani parse --model me/my-parser
  vaswani parse --model runs/parser-small/model --input tagged.txt --input_form tagged --output out.trees --resume
  vaswani parse --model runs/parser-small/model --input one.txt --picture one.svg --gold one.mrg

A line in is a tree out, in the same order, in brackets that EVALB and NLTK read; an empty line stays empty. The tree
has just the words of its line, which text is divided into as in the Penn Treebank.

Lines are read, batched and written as by vaswani translate. After a signal or kill -9 the output holds whole lines;
the same command with --resume parses the others.
"""

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaswani.errors import UserError
from vaswani.models.trees_vaswani import TREES, Tree, restore
from vaswani.parsing.treebank import read_trees
from vaswani.pictures.trees import draw_trees

from .shared import line_by_line
from .shared.flags import add_batch_flags, add_decoding_flags, add_model_flags, decoding
from .shared.outputs import check_outputs
from .shared.startup import large_imports


if TYPE_CHECKING:
    from vaswani.models.legal_trees_vaswani import LegalTrees
    from vaswani.models.parsing_vaswani import Sentence


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add all flags of the command."""
    parser.add_argument("--model", required=True, metavar="DIR_OR_HUB_ID", help="a published parser")
    line_by_line.add_file_flags(parser, "parse")
    parser.add_argument(
        "--input_form",
        choices=["text", "words", "tagged"],
        default="text",
        help="what a line is: text; words with a space between two; or words with their parts of speech, as dog_NN "
        "(default: text)",
    )
    parser.add_argument(
        "--unconstrained",
        action="store_true",
        help="let the search write whatever the model finds likely, and repair it, instead of nothing but trees",
    )
    parser.add_argument("--picture", metavar="FILE.svg", help="draw the first tree of the output")
    parser.add_argument("--gold", metavar="FILE", help="draw the first tree of this file beside it")
    add_decoding_flags(parser)
    add_batch_flags(parser)
    line_by_line.add_reading_flags(parser)
    add_model_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Parse, and return the exit status."""
    check(options)
    return line_by_line.run(options, lambda: parser(options), "Parsing")


def check(options: argparse.Namespace) -> None:
    """Refuse flags for pictures that do not go together, and a picture that is no SVG or cannot be written."""
    if options.gold and not options.picture:
        raise UserError("gold needs picture: it is drawn there")
    if options.picture and Path(options.picture).suffix != ".svg":
        raise UserError(f"picture={options.picture!r} must end in .svg")
    others = {"the output": options.output, "the input": options.input, "the file of gold": options.gold}
    check_outputs({"picture": options.picture}, {what: path for what, path in others.items() if path is not None})


def parser(options: argparse.Namespace) -> line_by_line.Worker:
    """Load the model; return what parses lines with it, and who does that.

    Raises
    ------
    UserError
        If the model is no parser.
    """
    with large_imports():
        from transformers.utils.logging import disable_progress_bar

        from vaswani.workers import choose_workers, describe_workers

        from .shared.loading import load_model
    disable_progress_bar()  # transformers' own, at loading
    model, tokenizer = load_model(options)
    if getattr(model.config, "target_lang", None) != TREES:
        raise UserError(f"model={options.model!r} must be a parser, whose target language is {TREES!r}")
    workers = choose_workers(options.workers, model.device)
    return LineParser(model, tokenizer, options, workers), describe_workers(workers, model)


class LineParser:
    """Parses lines, and draws the first tree if the flags ask for that.

    Parameters
    ----------
    model, tokenizer
        A parser.
    options : Namespace
        The flags of the command.
    workers : int
        Processes.
    """

    def __init__(self, model: Any, tokenizer: Any, options: argparse.Namespace, workers: int):
        self.model, self.tokenizer, self.options, self.workers = model, tokenizer, options, workers
        self.gold = {"gold": next(read_trees(options.gold))} if options.gold else {}
        self.is_drawn = options.picture is None
        how = {"is_constrained": not options.unconstrained, "workers": workers}
        if options.resume and os.path.isfile(options.output):
            with suppress(UserError):  # of a first line that is not whole: it is parsed again
                self._draw_first(read_trees(options.output))
        self.check_memory = line_by_line.memory_check(model, tokenizer, decoding(options), options, **how)

    def __call__(self, lines: Sequence[str], on_batch: Callable[[int], object]) -> list[str]:
        """Return a tree in brackets for each line; `on_batch` is told of each batch how many lines it had.

        Raises
        ------
        UserError
            If a line cannot be read, or has an unknown part of speech.
        """
        from vaswani.translation import translate

        sentences = [read_line(line, self.options.input_form) for line in lines]
        texts = [" ".join(sentence.words) for sentence in sentences]
        self.check_memory(texts)
        outputs = translate(
            self.model,
            self.tokenizer,
            texts,
            max_batch_tokens=self.options.max_batch_tokens,
            on_batch=on_batch,
            constraint=None if self.options.unconstrained else partial(self._legal_trees, sentences),
            workers=self.workers,
            num_return_sequences=1,
            **decoding(self.options),
        )
        trees = [
            restore(best.text, *sentence).tree if sentence.words else None
            for (best, *_), sentence in zip(outputs, sentences, strict=True)
        ]
        self._draw_first(tree for tree in trees if tree is not None)
        return ["" if tree is None else str(tree) for tree in trees]

    def _legal_trees(self, sentences: Sequence["Sentence"], rows: Sequence[int]) -> "LegalTrees":
        """Return what lets a batch of these rows be trees over its sentences alone."""
        from vaswani.models.legal_trees_vaswani import LegalTrees

        try:
            return LegalTrees(self.tokenizer, *zip(*(sentences[row] for row in rows), strict=True))
        except ValueError as error:  # an unknown part of speech
            raise UserError(str(error)) from error

    def _draw_first(self, trees: Iterator[Tree]) -> None:
        """Draw the first of all trees of the output, once."""
        first = None if self.is_drawn else next(trees, None)
        if first is not None:
            Path(self.options.picture).write_text(draw_trees({"model": first} | self.gold), encoding="utf-8")
            self.is_drawn = True


def read_line(line: str, form: str) -> "Sentence":
    """Read the words of a line, and their parts of speech if it has them.

    Raises
    ------
    UserError
        If a word holds a bracket or has no part of speech.
    """
    from vaswani.models.parsing_vaswani import Sentence, read_sentence

    if not line.strip():
        return Sentence([])
    given: object = line
    if form != "text":
        given = line.split() if form == "words" else [_word_and_tag(part, line) for part in line.split()]
    try:
        return read_sentence(given)
    except ValueError as error:
        raise UserError(f"{error}; the line is {line!r:.80}") from error


def _word_and_tag(part: str, line: str) -> tuple[str, str]:
    word, mark, tag = part.rpartition("_")
    if not mark:
        raise UserError(f"{part!r} must have a part of speech behind it, as dog_NN has; the line is {line!r:.80}")
    return word, tag
