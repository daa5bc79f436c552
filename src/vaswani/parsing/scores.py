"""The scores of parses, of trees or of the symbols that a model wrote."""

from collections.abc import Sequence
from typing import Any

from vaswani.models.trees_vaswani import Tree, restore
from vaswani.parsing.evalb import Counts, count, length


# Words of a sentence, punctuation included, up to which it belongs to a group; the last group is of longer ones.
LENGTHS = (10, 20, 30, 40)
GROUPS = ("1-10", "11-20", "21-30", "31-40", "over 40")


def score(sources: Sequence[str], outputs: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Score symbols against the right ones, as EVALB scores the trees that they stand for.

    Parameters
    ----------
    sources : sequence of str
        The words, with a space between two.
    outputs, references : sequence of str
        Linearized trees; the outputs are repaired where they are none (`restore`).

    Returns
    -------
    dict
        As `score_trees`, with `well_formed`: percent of outputs that needed no repair.
    """
    sentences = [source.split() for source in sources]
    gold = [restore(symbols, words, is_gold=True).tree for symbols, words in zip(references, sentences, strict=True)]
    restored = [restore(symbols, words) for symbols, words in zip(outputs, sentences, strict=True)]
    well_formed = sum(repairs == 0 for _, repairs in restored)
    scores = score_trees(gold, [tree for tree, _ in restored])
    return scores | {"well_formed": round(100 * well_formed / len(gold), 2)}


def score_trees(gold: Sequence[Tree], predicted: Sequence[Tree]) -> dict[str, Any]:
    """Score trees against the right ones, as EVALB does.

    Returns
    -------
    dict
        EVALB's figures (`Counts.scores`), `evalb_errors`, `sentences`, and `bracketing_f1_by_length`: F1 by the words
        of the sentence.
    """
    groups = dict.fromkeys(GROUPS, Counts())
    for right, tree in zip(gold, predicted, strict=True):
        group = GROUPS[sum(length(right) > most for most in LENGTHS)]
        groups[group] += count(right, tree)
    total = sum(groups.values(), start=Counts())
    return {name: round(value, 2) for name, value in total.scores.items()} | {
        "evalb_errors": total.errors,
        "sentences": total.sentences,
        "bracketing_f1_by_length": {
            name: {"sentences": counts.sentences, "bracketing_f1": round(counts.scores["bracketing_f1"], 2)}
            for name, counts in groups.items()
        },
    }
