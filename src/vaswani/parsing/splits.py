"""Treebanks as datasets: the words of each tree, and the tree as symbols."""

from collections.abc import Iterator
from pathlib import Path

from datasets import Dataset

from vaswani.errors import UserError
from vaswani.models.trees_vaswani import TREES, Tree, linearize
from vaswani.parsing.treebank import PREFIX, find_files, read_trees
from vaswani.text import hub
from vaswani.text.parallel import build


def load_treebank(name: str, languages: tuple[str, str]) -> dict[str, Dataset]:
    """Read all splits of a treebank, with a column for each of the two languages.

    Parameters
    ----------
    name : str
        "treebank:" and a folder, as `find_files` takes it.
    languages : tuple of str
        That of the words, and "tree".

    Raises
    ------
    UserError
        If there is no such folder, it lacks a split, a file cannot be read as trees, or the second language is not
        "tree".
    """
    if languages[1] != TREES:
        raise UserError(f"target_lang={languages[1]!r} must be {TREES!r}: dataset_name={name!r} has trees")
    return {
        split: build(read_rows, list(map(str, files)), languages)
        for split, files in find_files(name.removeprefix(PREFIX)).items()
    }


def read_rows(paths: list[str], languages: tuple[str, str]) -> Iterator[dict[str, str]]:
    """Yield the words and the symbols of each tree."""
    for path in paths:
        for tree in read_trees(Path(path)):
            yield as_row(tree, languages)


def as_row(tree: Tree, languages: tuple[str, str]) -> dict[str, str]:
    """Return the words of a tree and its symbols, by the languages."""
    return dict(zip(languages, (" ".join(word for word, _ in tree.leaves()), linearize(tree)), strict=True))


def load_split(name: str, config: str | None, split: str, languages: tuple[str, str]) -> Dataset:
    """Read one split of a treebank, or of any other dataset, as columns `source` and `target`.

    Raises
    ------
    UserError
        If the dataset, its configuration, the split or a language is missing.
    """
    if not name.startswith(PREFIX):
        return hub.load_split(name, config, split, languages)
    loaded = load_treebank(name, languages)
    hub.require_splits(loaded, [split], name)
    return hub.as_source_and_target(loaded[split], split, languages)
