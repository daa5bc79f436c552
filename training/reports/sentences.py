"""Sentences to look at: the worst and the best of an evaluation, and a few of them through training."""

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sacrebleu

from training.reports.records import Outputs


EXTREMES = 8  # worst, and best
SAMPLES = 4
MOMENTS = 8  # of training, at which samples are shown


class Part(NamedTuple):
    """Some words of a sentence, and whether the other sentence has them there too."""

    text: str
    is_shared: bool


@dataclass(frozen=True)
class Compared:
    """A translation beside its reference.

    Attributes
    ----------
    label : str
        Of which update; empty where it does not matter.
    source : str
    output, reference : list of Part
    chrf : float
        Of this sentence.
    """

    label: str
    source: str
    output: list[Part]
    reference: list[Part]
    chrf: float


def compare(source: str, output: str, reference: str, label: str = "") -> Compared:
    """Mark what an output and its reference do not share, word by word."""
    ours, theirs = output.split(), reference.split()
    blocks = difflib.SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes()
    left = [Part(" ".join(ours[a:b]), kind == "equal") for kind, a, b, _, _ in blocks if b > a]
    right = [Part(" ".join(theirs[a:b]), kind == "equal") for kind, _, _, a, b in blocks if b > a]
    return Compared(label, source, left, right, sacrebleu.sentence_chrf(output, [reference]).score)


def extremes(outputs: Outputs) -> tuple[list[Compared], list[Compared]]:
    """Return the sentences with the lowest chrF, the worst first, and those with the highest, the best first.

    Sentences that are the same count once. Of equal ones the longer stands first, as it says more.
    """
    pairs = dict.fromkeys(zip(outputs.sources, outputs.outputs, outputs.references, strict=True))
    longest_first = sorted(pairs, key=lambda pair: -len(pair[2]))
    found = sorted((compare(*pair) for pair in longest_first), key=lambda one: one.chrf)
    size = min(EXTREMES, len(found) // 2)
    return found[:size], sorted(found[-size:] if size else [], key=lambda one: -one.chrf)


def through_training(evaluations: Sequence[Outputs]) -> list[list[Compared]]:
    """Return for a few sentences, those that the run shows in the terminal, what evaluations on the way made of them.

    Where there were many, some are shown, evenly spread, and always the last.
    """
    if not evaluations:
        return []
    step = math.ceil(len(evaluations) / MOMENTS)
    evaluations = evaluations[(len(evaluations) - 1) % step :: step]  # so that the last is one of them
    count = len(evaluations[-1].sources)
    chosen = range(0, count, max(1, count // SAMPLES))[:SAMPLES]
    return [
        [
            compare(outputs.sources[index], outputs.outputs[index], outputs.references[index], outputs.name)
            for outputs in evaluations
            if index < len(outputs.outputs)
        ]
        for index in chosen
    ]
