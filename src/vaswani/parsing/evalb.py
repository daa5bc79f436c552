"""Labelled bracketing as the program EVALB scores it, with the settings of its COLLINS.prm.

Punctuation is left out with its words, and so is the label TOP. ADVP and PRT count as one label. Where a tree has
several constituents of one label over the same words, as many match as both trees have. A sentence whose words,
punctuation left out, are not the same in both trees is an error: it counts nowhere but among the errors.
"""

from collections import Counter
from dataclasses import dataclass

from vaswani.models.trees_vaswani import TOP, Tree
from vaswani.parsing.treebank import TRACE, bare_label


DELETED = frozenset({TOP, TRACE, ",", ":", "``", "''", "."})
EQUAL = {"PRT": "ADVP"}

Span = tuple[str, int, int]  # label, and the words from the first to before the second number


@dataclass(frozen=True)
class Counts:
    """What is counted of sentences, and can be added up.

    Attributes
    ----------
    sentences, errors : int
        All, and those of them that cannot be compared, which no other number counts.
    gold, predicted, matched : int
        Brackets of the gold trees, of the others, and of both.
    exact : int
        Sentences all of whose brackets match.
    crossing : int
        Predicted brackets that cross a gold one.
    without_crossing, up_to_two_crossing : int
        Sentences with none, and with at most two.
    words, correct_tags : int
        Without punctuation.
    """

    sentences: int = 0
    errors: int = 0
    gold: int = 0
    predicted: int = 0
    matched: int = 0
    exact: int = 0
    crossing: int = 0
    without_crossing: int = 0
    up_to_two_crossing: int = 0
    words: int = 0
    correct_tags: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True)))

    @property
    def scores(self) -> dict[str, float]:
        """What EVALB prints, in percent except for `average_crossing`, which is brackets a sentence."""
        compared = self.sentences - self.errors
        recall, precision = ratio(self.matched, self.gold), ratio(self.matched, self.predicted)
        return {
            "bracketing_recall": 100 * recall,
            "bracketing_precision": 100 * precision,
            "bracketing_f1": 100 * ratio(2 * precision * recall, precision + recall),
            "exact_match": 100 * ratio(self.exact, compared),
            "average_crossing": ratio(self.crossing, compared),
            "no_crossing": 100 * ratio(self.without_crossing, compared),
            "two_or_less_crossing": 100 * ratio(self.up_to_two_crossing, compared),
            "tagging_accuracy": 100 * ratio(self.correct_tags, self.words),
        }


def ratio(part: float, whole: float) -> float:
    """Divide, and have 0 of nothing be 0."""
    return part / whole if whole else 0.0


def count(gold: Tree, predicted: Tree) -> Counts:
    """Compare the tree of one sentence with the right one."""
    words, gold_tags, gold_spans = _take_apart(gold)
    predicted_words, tags, spans = _take_apart(predicted)
    if predicted_words != words or not words:
        return Counts(sentences=1, errors=1)
    matched = sum((Counter(gold_spans) & Counter(spans)).values())
    crossing = sum(any(_cross(span, other) for other in gold_spans) for span in spans)
    return Counts(
        sentences=1,
        gold=len(gold_spans),
        predicted=len(spans),
        matched=matched,
        exact=int(len(gold_spans) == len(spans) == matched),
        crossing=crossing,
        without_crossing=int(crossing == 0),
        up_to_two_crossing=int(crossing <= 2),
        words=len(words),
        correct_tags=sum(tag == right for tag, right in zip(tags, gold_tags, strict=True)),
    )


def length(gold: Tree) -> int:
    """Return the words of a sentence, punctuation included and traces not: by it EVALB groups sentences."""
    return sum(tag != TRACE for _, tag in gold.leaves())


def _take_apart(tree: Tree) -> tuple[list[str], list[str], list[Span]]:
    """Return the words that count, their parts of speech, and the constituents that count."""
    words: list[str] = []
    tags: list[str] = []
    spans: list[Span] = []
    starts: list[int] = []
    for kind, node in tree.walk():
        label = node.label
        if kind == "open":
            starts.append(len(words))
        elif kind == "close":
            span = (EQUAL.get(bare_label(label), bare_label(label)), starts.pop(), len(words))
            if span[1] < span[2] and span[0] not in DELETED:
                spans.append(span)
        elif label not in DELETED:
            words.append(str(node.children[0]))
            tags.append(label)
    return words, tags, spans


def _cross(one: Span, other: Span) -> bool:
    """Whether two constituents overlap, and neither is within the other."""
    return one[1] < other[1] < one[2] < other[2] or other[1] < one[1] < other[2] < one[2]
