"""Scores by the length of the source."""

from collections.abc import Sequence
from dataclasses import dataclass

from vaswani.scoring.protocols import todays_bleu


# Shares of the sentences, the shortest first, at which a bucket ends: fifths, and the longest twentieth by itself.
ENDS = (0.2, 0.4, 0.6, 0.8, 0.95, 1.0)


@dataclass(frozen=True)
class Bucket:
    """The sentences of a text whose sources have from `first` to `last` words.

    Attributes
    ----------
    sentences : list of int
        Their indices.
    """

    first: int
    last: int
    sentences: list[int]

    @property
    def name(self) -> str:
        """Such as "7-9"."""
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def buckets(sources: Sequence[str]) -> list[Bucket]:
    """Part sentences by the number of words of their source, into fifths and the longest twentieth.

    Sentences of the same length stay together, so the parts are about that large.
    """
    lengths = [len(source.split()) for source in sources]
    ordered = sorted(lengths)
    lasts = sorted({ordered[min(len(ordered), round(end * len(ordered))) - 1] for end in ENDS if ordered})
    parts, first = [], min(ordered, default=0)
    for last in lasts:
        parts.append(Bucket(first, last, [i for i, length in enumerate(lengths) if first <= length <= last]))
        first = last + 1
    return parts


def bleu_of(
    part: Bucket,
    translations: Sequence[str],
    references: Sequence[str],
    target_lang: str | None = None,
    tokenized: bool = False,
) -> float:
    """Return sacreBLEU of the sentences of a bucket, as one corpus, in a language or tokenized before."""
    hypotheses, expected = ([side[index] for index in part.sentences] for side in (translations, references))
    return todays_bleu(tokenized=tokenized, target_lang=target_lang).corpus_score(hypotheses, [expected]).score
