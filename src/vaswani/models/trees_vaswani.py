"""Constituency trees and their linearization (section 6.3): brackets to symbols, and back whatever a model writes.

A linearized tree is its brackets with parts of speech in place of words, as in Vinyals et al. 2015 and in the
original code. "(S (NP (DT the) (NN dog)) (VP (VBZ sleeps)))" becomes::

    (S (NP (DT) (NN) )NP (VP (VBZ) )VP )S

Each of these symbols is one type of the vocabulary. No word can look like one, since the treebank writes the brackets
of a text as -LRB- and -RRB-. The original code writes "S", "DT" and "/S"; it has a vocabulary for each side.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple


TREES = "tree"  # what stands for the target language of a parser
TOP = "TOP"  # of a tree that has several roots; the scorer does not count it
UNKNOWN_TAG = "NN"  # of a word for which a model wrote none, the most frequent one
# Words that have one part of speech; the scorer leaves these out with their words.
PUNCTUATION = {",": ",", ".": ".", "?": ".", "!": ".", "``": "``", "''": "''", "`": "``"} | dict.fromkeys(
    (":", ";", "--", "-", "..."), ":"
)
APOSTROPHE = "'"  # a possessive or a closing quotation mark
BRACKETS = {"(": "-LRB-", ")": "-RRB-"}
SYMBOL = re.compile(r"\(([^\s()]+)\)|\(([^\s()]+)|\)([^\s()]+)|([^\s()]+|[()])")
OPEN, LEAF, CLOSE = "open", "leaf", "close"


class Tree(NamedTuple):
    """A constituent with its children; or a part of speech, whose only child is its word."""

    label: str
    children: "list[Tree | str]"

    @property
    def is_leaf(self) -> bool:
        """Whether this is a part of speech with its word."""
        return bool(self.children) and isinstance(self.children[0], str)

    def walk(self) -> "Iterator[tuple[str, Tree]]":
        """Yield from left to right where constituents open and close, and the leaves: `OPEN`, `LEAF`, `CLOSE`."""
        stack: list[tuple[Tree, bool]] = [(self, False)]
        while stack:
            tree, has_been_open = stack.pop()
            if tree.is_leaf:
                yield LEAF, tree
            elif has_been_open:
                yield CLOSE, tree
            else:
                yield OPEN, tree
                stack.append((tree, True))
                stack += [(child, False) for child in reversed(tree.children) if isinstance(child, Tree)]

    def leaves(self) -> list[tuple[str, str]]:
        """Return each word and its part of speech."""
        return [(str(tree.children[0]), tree.label) for kind, tree in self.walk() if kind == LEAF]

    def __str__(self) -> str:
        forms = {OPEN: " ({0}", LEAF: " ({0} {1})", CLOSE: ")"}
        return "".join(forms[kind].format(tree.label, *tree.children[:1]) for kind, tree in self.walk()).lstrip()


class Restored(NamedTuple):
    """A tree that was read from symbols, and in how many places these had to be repaired."""

    tree: Tree
    repairs: int


def linearize(tree: Tree) -> str:
    """Write a tree as symbols, with a space between two."""
    forms = {OPEN: "({}", LEAF: "({})", CLOSE: "){}"}
    return " ".join(forms[kind].format(node.label) for kind, node in tree.walk())


def restore(symbols: str, words: Sequence[str], tags: Sequence[str] | None = None, is_gold: bool = False) -> Restored:
    """Read a tree from symbols, and put the words into it.

    Parameters
    ----------
    symbols : str
        What a model wrote: a linearized tree, or anything else. Spaces between symbols may be missing.
    words : sequence of str
        Of the sentence. The tree has all of them, in this order, and no others.
    tags : sequence of str or None, default=None
        Their parts of speech, if these are known: they replace those of the symbols.
    is_gold : bool, default=False
        Whether the symbols are those of a given tree, whose parts of speech stay as they are.

    Returns
    -------
    Restored

    Raises
    ------
    ValueError
        If there is no word.

    Notes
    -----
    What is no tree is repaired so, from left to right: a closing bracket closes the nearest open constituent of its
    label and all within; without one it is passed over, and so is a part of speech where no word is left. The first
    constituent stays open while words are left. Words without a part of speech go to its end, as NN. A constituent
    without words is left out. Roots that are several become one, "TOP".

    Punctuation has the part of speech that `PUNCTUATION` says, and other words have none of these; this counts as no
    repair. The scorer, which leaves punctuation out, could not compare the sentence otherwise.
    """
    if not words:
        raise ValueError("a sentence must have at least one word")
    root = Tree(TOP, [])
    stack, repairs, used = [root], 0, 0

    def add_leaf(tag: str) -> None:
        nonlocal used
        word = words[used]
        tag = tags[used] if tags is not None else tag if is_gold else fit(tag, word)
        stack[-1].children.append(Tree(tag, [word]))
        used += 1

    def close() -> int:
        """Close the innermost constituent; return 1 if it had to be left out."""
        if stack.pop().children:
            return 0
        stack[-1].children.pop()
        return 1

    for leaf, opening, closing, _ in SYMBOL.findall(symbols):
        if opening:
            stack[-1].children.append(constituent := Tree(opening, []))
            stack.append(constituent)
        elif leaf and used < len(words):
            add_leaf(leaf)
        elif closing in (labels := [tree.label for tree in stack[1:]]):
            depth = len(labels) - labels[::-1].index(closing)
            is_early = depth == 1 and used < len(words)
            repairs += len(stack) - 1 - depth + is_early
            while len(stack) > depth + is_early:
                repairs += close()
        else:
            repairs += 1
    repairs += len(stack) - 1
    while len(stack) > 1 + (used < len(words)):
        repairs += close()
    for _ in words[used:]:
        add_leaf(UNKNOWN_TAG)
        repairs += 1
    is_one = len(root.children) == 1
    only = root.children[0] if is_one else root
    assert isinstance(only, Tree)
    return Restored(only, repairs + (not is_one))


def fit(tag: str, word: str) -> str:
    """Return a part of speech that fits a word: for punctuation its own, and none of these for others."""
    if word in PUNCTUATION:
        return PUNCTUATION[word]
    return UNKNOWN_TAG if tag in PUNCTUATION.values() and word != APOSTROPHE else tag


__all__ = ["TREES", "Restored", "Tree", "linearize", "restore"]
