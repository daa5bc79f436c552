"""More trees from few: their constituents alone, or in the place of others of their kind (Shi et al. 2021, "SUB2")."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from vaswani.models.trees_vaswani import Tree


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
    """
    generator = np.random.default_rng(seed)
    kinds: dict[Kind, list[Tree]] = defaultdict(list)
    for tree in trees:
        for kind, constituent in constituents(tree):
            kinds[kind].append(constituent)
    made = 0
    while made < count:
        tree = trees[generator.integers(len(trees))]
        for _ in range(generator.integers(1, replacements + 1)):
            there = constituents(tree)
            if not there:
                break
            kind, old = there[generator.integers(len(there))]
            tree = replaced(tree, old, kinds[kind][generator.integers(len(kinds[kind]))])
        if 1 < len(tree.leaves()) <= max_words:
            made += 1
            yield tree


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
