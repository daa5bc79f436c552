"""What a parser must beat: trees that branch to the right, and those of a grammar that was read off the treebank."""

from collections import Counter
from collections.abc import Callable, Sequence

from tqdm.auto import tqdm

from training.tables.parsing.pcfg import Pcfg
from vaswani.models.trees_vaswani import Tree


Leaves = Sequence[tuple[str, str]]  # words, and the right parts of speech


def right_branching(leaves: Leaves, label: str) -> Tree:
    """Return the tree whose every constituent is a word and the rest; the final full stop belongs to the root."""
    ending = [Tree(tag, [word]) for word, tag in leaves[-1:] if tag == "." and len(leaves) > 1]
    *firsts, last = leaves[: len(leaves) - len(ending)]
    rest = Tree(last[1], [last[0]])
    for word, tag in reversed(firsts):
        rest = Tree(label, [Tree(tag, [word]), rest])
    children = [rest] if rest.is_leaf else rest.children
    return Tree("S", [*children, *ending])


def right_branching_label(trees: Sequence[Tree]) -> str:
    """Return the label that constituents at the end of a sentence, without its full stop, have most often."""
    labels: Counter[str] = Counter()
    for tree in trees:
        node = tree
        while not node.is_leaf:
            children = [child for child in node.children if isinstance(child, Tree) and child.label != "."]
            if not children:
                break
            node = children[-1]
            labels[node.label] += not node.is_leaf
    return labels.most_common(1)[0][0]


def measure_floors(train: Sequence[Tree], sentences: Sequence[Leaves]) -> dict[str, list[Tree]]:
    """Parse sentences, given with their right parts of speech, by each of the floors.

    Returns
    -------
    dict of str to list of Tree
        By what the floor is. A sentence that a grammar has no tree for branches to the right.
    """
    label = right_branching_label(train)
    plain, annotated = Pcfg(train, vertical=1, horizontal=2), Pcfg(train, vertical=2, horizontal=1)
    parsers: dict[str, Callable[[Leaves], Tree | None]] = {
        f"right-branching {label} over the right tags": lambda leaves: right_branching(leaves, label),
        "PCFG": lambda leaves: plain.parse([word for word, _ in leaves]),
        "PCFG, parents in labels": lambda leaves: annotated.parse([word for word, _ in leaves]),
        "PCFG, parents in labels, right tags": lambda leaves: annotated.parse(*zip(*leaves, strict=True)),
    }
    return {
        name: [
            parse(leaves) or right_branching(leaves, label)
            for leaves in tqdm(sentences, desc=name, unit=" sentences", leave=False)
        ]
        for name, parse in parsers.items()
    }
