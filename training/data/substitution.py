"""More trees from few: their constituents alone, or in the place of others of their kind (Shi et al. 2021, "SUB2")."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from vaswani.errors import UserError
from vaswani.models.trees_vaswani import Tree


MAX_MISSES = 1000  # in a row, of trees that have too few words or too many
Kind = tuple[str, str]  # label, and label of the constituent above


def substituted(
    trees: Sequence[Tree], count: int, seed: int = 2017, max_words: int = 60, replacements: int = 3
) -> Iterator[Tree]:
    """Make new trees, each from one of `trees` whose constituents were replaced by others of the same kind.

    Parameters
    ----------
    trees : sequence of Tree
    count : int
        New trees to make.
    seed : int, default=2017
    max_words : int, default=60
        Longest sentence.
    replacements : int, default=3
        Most constituents that are replaced in a tree, one after the other; at least one is.

    Yields
    ------
    Tree
        Constituents of one kind have the same label and stand below the same label.

    Raises
    ------
    UserError
        If no such tree has from 2 to `max_words` words.
    """
    generator = np.random.default_rng(seed)
    kinds: dict[Kind, list[Tree]] = defaultdict(list)
    for tree in trees:
        for kind, constituent in constituents(tree):
            kinds[kind].append(constituent)
    made = misses = 0
    while made < count:
        if misses == MAX_MISSES:
            raise UserError(
                f"treebank_made={count} must be 0 for this treebank: of its constituents no tree of 2 to {max_words} "
                f"words was made, {MAX_MISSES:,} times in a row"
            )
        tree = trees[generator.integers(len(trees))]
        for _ in range(generator.integers(1, replacements + 1)):
            there = constituents(tree)
            if not there:
                break
            kind, old = there[generator.integers(len(there))]
            tree = replaced(tree, old, kinds[kind][generator.integers(len(kinds[kind]))])
        if 1 < len(tree.leaves()) <= max_words:
            made, misses = made + 1, 0
            yield tree
        else:
            misses += 1


def parts(trees: Iterable[Tree], max_words: int) -> Iterator[Tree]:
    """Yield the constituents below the roots of `trees` that have 2 to `max_words` words."""
    for tree in trees:
        for _, node in constituents(tree):
            if not node.is_leaf and 2 <= len(node.leaves()) <= max_words:
                yield node


def constituents(tree: Tree) -> list[tuple[Kind, Tree]]:
    """Return all constituents below the root, and parts of speech with their words, with their kinds."""
    found, above = [], []
    for step, node in tree.walk():
        if step == "close":
            above.pop()
            continue
        if above:
            found.append(((node.label, above[-1]), node))
        if step == "open":
            above.append(node.label)
    return found


def replaced(tree: Tree, old: Tree, new: Tree) -> Tree:
    """Return a tree in which another stands in the place of a constituent."""
    if tree is old:
        return new
    if tree.is_leaf:
        return tree
    return Tree(tree.label, [replaced(child, old, new) for child in tree.children if isinstance(child, Tree)])
