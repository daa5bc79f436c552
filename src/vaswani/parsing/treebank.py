"""Treebanks: files of bracketed trees, folders of them, and their splits; prepared as EVALB's users prepare them."""

import re
from collections.abc import Iterator
from pathlib import Path

from vaswani.errors import UserError
from vaswani.models.trees_vaswani import TOP, Tree
from vaswani.text.decompression import SUFFIXES, lines_of


PREFIX = "treebank:"  # of a dataset's name that is a folder of trees
ENDINGS = (".mrg", ".txt", ".trees", ".ptb")
TRACE = "-NONE-"
OUTER = ("", TOP, "ROOT", "S1")  # labels of a bracket around the whole tree that says nothing
# Sections of the Wall Street Journal: those of the paper and of nearly all others.
SECTIONS = {"train": range(2, 22), "validation": range(22, 23), "test": range(23, 24)}
TOKEN = re.compile(r"\(\s*[^\s()]*|\)|[^\s()]+")  # a bracket that opens, with its label; one that closes; a word


def read_trees(path: str | Path) -> Iterator[Tree]:
    """Read the trees of a file: one a line, or each over several lines, all but its first indented.

    Yields
    ------
    Tree
        Prepared (`prepare`).

    Raises
    ------
    UserError
        Naming file and line, if brackets are unbalanced, a tree is empty or malformed, or there is none.
    """
    is_empty = True
    for line, tree in _read_brackets(str(path)):
        is_empty, prepared = False, prepare(tree)
        if prepared is None:
            raise _refusal(path, line, "the tree holds no word")
        yield prepared
    if is_empty:
        raise UserError(f"the file {path} holds no tree: it must hold at least one, such as (S (NP (NN text)))")


def _read_brackets(path: str) -> Iterator[tuple[int, Tree]]:
    """Yield the trees of a file as they stand there, each with the line where it begins."""
    stack: list[Tree] = []  # the brackets that are open
    began = 0
    for number, text in enumerate(lines_of(path), start=1):
        if stack and text.startswith("("):
            what = f"unbalanced brackets: this tree is not closed where another begins, in line {number}"
            raise _refusal(path, began, what)
        for token in TOKEN.findall(text):
            if token.startswith("("):
                began = began if stack else number
                stack.append(Tree(token[1:].strip(), []))
            elif not stack:
                what = f"{token!r:.40} stands outside of all brackets"
                if token == ")":
                    what = "unbalanced brackets: one is closed that was not opened"
                raise _refusal(path, number, what)
            elif token == ")":
                tree = stack.pop()
                if not tree.children:
                    what = f"({tree.label}) is empty: a bracket must hold constituents or a word"
                    raise _refusal(path, number, what)
                if stack:
                    stack[-1].children.append(tree)
                else:
                    yield began, tree
            elif stack[-1].children or not stack[-1].label:
                what = (
                    f"{token!r:.40} cannot stand there: a bracket holds constituents, or a part of speech and a word, "
                    "whose own brackets must be written -LRB- and -RRB-"
                )
                raise _refusal(path, number, what)
            else:
                stack[-1].children.append(token)
    if stack:
        raise _refusal(path, began, "unbalanced brackets: the tree is not closed before the file ends")


def _refusal(path: str | Path, line: int, what: str) -> UserError:
    return UserError(f"{path}, line {line}: {what}")


def prepare(tree: Tree) -> Tree | None:
    """Leave out what a parser is not to predict, as is done before EVALB.

    Function tags ("NP-SBJ=1" becomes "NP"), traces (-NONE-) with all constituents that hold nothing else, a bracket
    around the whole tree without a label of its own, and brackets without any label within it.

    Returns
    -------
    Tree or None
        None if no word is left.
    """
    root = Tree("", [])
    stack = [root]
    for kind, node in tree.walk():
        if kind == "open":
            stack.append(Tree(bare_label(node.label), []))
        elif kind == "leaf" and node.label != TRACE:
            stack[-1].children.append(Tree(node.label, [node.children[0]]))
        elif kind == "close" and (closed := stack.pop()).children:
            is_kept = closed.label or len(stack) == 1
            stack[-1].children.extend([closed] if is_kept else closed.children)
    if not root.children:
        return None
    [top] = root.children
    while isinstance(top, Tree) and top.label in OUTER and len(top.children) == 1 and not top.is_leaf:
        [top] = top.children
    assert isinstance(top, Tree)
    return Tree(TOP, top.children) if top.label in OUTER and not top.is_leaf else top


def bare_label(label: str) -> str:
    """Return a constituent's label without function tags and numbers."""
    return re.split("[-=]", label, maxsplit=1)[0]


def find_files(folder: str | Path) -> dict[str, list[Path]]:
    """Find the files of each split of a treebank.

    Parameters
    ----------
    folder : str or Path
        With a file or a folder for each of "train", "validation" and, if there is one, "test"; or with the sections of
        the Wall Street Journal, 00 to 24, of which 2-21, 22 and 23 are taken.

    Raises
    ------
    UserError
        If there is no such folder, or it has no trees of "train" or "validation".
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"dataset_name='{PREFIX}{folder}' must name a folder: {folder} is none")
    found = {split: _files_of(folder, split) for split in SECTIONS}
    if not any(found.values()):
        found = {
            split: [path for number in numbers for path in _files_in(folder / f"{number:02}")]
            for split, numbers in SECTIONS.items()
        }
    for split in ("train", "validation"):
        if not found[split]:
            raise UserError(
                f"the treebank {folder} has no trees for {split!r}: it must hold {split}.txt, a folder {split}/ of "
                f"files that end in {', '.join(ENDINGS)}, or the sections 02 to 23 of the Wall Street Journal"
            )
    return {split: files for split, files in found.items() if files}


def _files_of(folder: Path, split: str) -> list[Path]:
    files = [path for path in _files_in(folder, deep=False) if path.name.split(".")[0] == split]
    places = [*files, *([folder / split] if _files_in(folder / split) else [])]
    if len(places) > 1:
        names = ", ".join(path.name for path in places)
        raise UserError(f"the treebank {folder} has {split!r} more than once: {names}")
    return files or _files_in(folder / split)


def _files_in(folder: Path, deep: bool = True) -> list[Path]:
    """Return the files of trees, compressed or not, in the order of their names."""
    paths = folder.rglob("*") if deep else folder.glob("*")
    return sorted(path for path in paths if path.is_file() and _holds_trees(path))


def _holds_trees(path: Path) -> bool:
    ending = path.with_suffix("").suffix if path.suffix in SUFFIXES else path.suffix
    return ending in ENDINGS
