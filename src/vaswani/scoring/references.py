"""The text that an evaluation is on: aligned files or a split of a dataset, counted where its name implies a size."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from datasets import Dataset

from vaswani.errors import UserError
from vaswani.text.parallel import read_lines


Line = TypeVar("Line")

# The sets of section 6.1: the one on which choices were made, and the one that is reported.
NEWSTEST = {"newstest2013": 3000, "newstest2014": 3003}
WMT14_SPLITS = {"validation": "newstest2013", "test": "newstest2014"}
FILTERED_NEWSTEST2014 = 2737

# Reads a split as columns `source` and `target`: of the dataset, its configuration, in these languages.
ReadSplit = Callable[[str, str | None, str, tuple[str, str]], Dataset]


class EvaluationSet(NamedTuple):
    """Sentences to score against, their sources where these are known, and the name of both."""

    name: str
    split: str
    sources: list[str] | None
    references: list[str]


def read_files(source: str | None, reference: str, samples: int | None = None) -> EvaluationSet:
    """Read two aligned files.

    Parameters
    ----------
    source : str or None
        May be missing where the translations exist already.
    reference : str
    samples : int or None, default=None
        Take only this many lines.

    Raises
    ------
    UserError
        If a file is missing, empty or not UTF-8, the numbers of lines differ, or no pair has text on both sides.
    """
    references = read_lines(reference)[:samples]
    if not references:
        raise UserError(f"the reference {reference} is empty: it must hold a sentence a line")
    text = EvaluationSet(Path(reference).name, "test", None, references)
    if source is not None:
        text = text._replace(sources=as_many(source, read_lines(source), text, samples))
    require_pair(text)
    return text


def read_dataset(
    name: str, config: str | None, split: str, languages: tuple[str, str], samples: int | None, read_split: ReadSplit
) -> EvaluationSet:
    """Read a split of a dataset.

    Parameters
    ----------
    name, config, split, languages
        As for `read_split`.
    samples : int or None
        Read only this many pairs.
    read_split : callable
        Reads datasets of the Hub and folders in its layout, or more than these.

    Raises
    ------
    UserError
        If the dataset, its configuration, the split or a language is missing, or no pair has text on both sides.
    """
    rows = read_split(name, config, split, languages)
    sources, references = ([sentence or "" for sentence in rows[side][:samples]] for side in ("source", "target"))
    text = EvaluationSet(f"{Path(name).name}{f' ({config})' if config else ''}", split, sources, references)
    require_pair(text)
    return text


def require_pair(text: EvaluationSet) -> None:
    """Refuse a text of which nothing can be scored: no pair has text on all sides that are known."""
    sides = [text.references] if text.sources is None else [text.sources, text.references]
    if not any(all(side.strip() for side in pair) for pair in zip(*sides, strict=True)):
        raise UserError("the text holds no pair to score: one at least must have text on both sides")


def read_hypotheses(path: str, text: EvaluationSet, samples: int | None = None) -> list[str]:
    """Read translations of a test set; where this was cut to some samples, they may be of all, or of these.

    Raises
    ------
    UserError
        If the file is missing, empty, not UTF-8, or has another number of lines.
    """
    hypotheses = read_lines(path)
    if not hypotheses:
        lines = len(text.references)
        raise UserError(f"the hypothesis file {path} is empty: it must hold a line for each of {lines:,} references")
    return as_many(path, hypotheses, text, samples)


def as_many(path: str, lines: list[Line], text: EvaluationSet, samples: int | None, unit: str = "lines") -> list[Line]:
    """Cut the lines of a file to the samples, as the text was, and refuse it unless it has as many as references."""
    first, count = lines[:samples], len(text.references)
    if len(first) == count:
        return first
    if count == samples:  # the references may have been more
        must = f"the first {count:,} of {text.name} are scored: it must have as many"
    else:
        must = f"{text.name} has {count:,}: the numbers must be equal"
    raise UserError(f"{path} has {len(lines):,} {unit} but {must}")


def wrong_size(text: EvaluationSet) -> str | None:
    """Say in a sentence if a test set is not the one that its name or size makes one think of."""
    lines, name = len(text.references), text.name
    if name.split(" ")[0].lower() == "wmt14":
        name = WMT14_SPLITS.get(text.split, name)
    for newstest, expected in NEWSTEST.items():
        if newstest in name.lower() and lines not in (expected, FILTERED_NEWSTEST2014):
            return f"{newstest} has {expected:,} lines, but this has {lines:,}: scores do not compare with others'"
    if lines == FILTERED_NEWSTEST2014:
        return (
            f"{lines:,} lines are the filtered newstest2014 (sacreBLEU's wmt14), another test set than the paper's "
            f"{NEWSTEST['newstest2014']:,} lines (wmt14/full): their scores do not compare"
        )
    return None
