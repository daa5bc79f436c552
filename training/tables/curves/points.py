"""What finished runs say: their quality on the way and at the end, and what doubling something gave."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet

from training.tables.cost import count_parameters, flops_per_target_token
from training.tables.curves.rows import Row, config_of
from training.tables.metrics import logged_evaluations, logged_updates, seconds_of_training, tokens_until
from training.tables.sweep import Run


SCORES = {"sacrebleu": "BLEU", "chrf": "chrF"}
NEAR = 0.2  # as a share of the tokens that are wanted
HALF = 0.6  # evaluations on the way, and shares that are rounded, need not lie at the half


@dataclass(frozen=True)
class Point:
    """A finished run.

    Attributes
    ----------
    row : Row
    pairs, parameters : int
        Pairs of its training text, and size of its model.
    target_tokens : int
        That it was trained on, each time that it saw them.
    seconds : float
        Of training, without evaluations and checkpoints.
    flops : float
        Of training.
    on_the_way : list of (int, dict)
        Target tokens seen, and the evaluation on validation after them: greedy search, that update's weights.
    validation, test : dict
        The evaluations of the published model.
    """

    row: Row
    pairs: int
    parameters: int
    target_tokens: int
    seconds: float
    flops: float
    on_the_way: list[tuple[int, dict[str, Any]]]
    validation: dict[str, Any]
    test: dict[str, Any]


def measure(row: Row, run: Run) -> Point:
    """Collect what a finished run has measured."""
    updates = logged_updates(run.directory)
    *on_the_way, final = logged_evaluations(run.directory, "validation")
    tokens = sum(each["target_tokens"] for each in updates)
    seen = [tokens_until(one["step"], updates) for one in on_the_way]
    [file] = run.settings.data.train_file or []
    config = config_of(row, run.settings)
    return Point(
        row=row,
        pairs=pyarrow.parquet.read_metadata(file).num_rows,
        parameters=count_parameters(config),
        target_tokens=tokens,
        seconds=seconds_of_training(updates),
        flops=tokens * flops_per_target_token(config),
        on_the_way=list(zip(seen, on_the_way, strict=True)),
        validation=final,
        test=logged_evaluations(run.directory, "test")[-1],
    )


@dataclass(frozen=True)
class Doubling:
    """What doubling something gave, in points of a score.

    Attributes
    ----------
    what : str
    score : str
        One of `SCORES`.
    overall : float
        On average over the whole range.
    last : float
        From the last point that is at most `HALF` of the last one, as for a doubling: nearer ones differ by luck.
    """

    what: str
    score: str
    overall: float
    last: float

    @property
    def factor_of_one_point(self) -> float | None:
        """How many times as much one more point would take, at the last doubling's rate; None if it gained nothing."""
        return 2 ** (1 / self.last) if self.last > 0.01 else None


def doublings(points: Sequence[Point]) -> list[Doubling]:
    """Say what twice the text, twice the training and twice the model gave, as far as runs differ in them."""
    first = points[0].row.config
    whole = [point for point in points if point.row.share == 1]
    longest = next((point for point in whole if point.row.config == first), None)
    found = []
    for score in SCORES:
        by_text = [(point.pairs, point.test[score]) for point in points if point.row.config == first]
        by_size = [(point.parameters, point.test[score]) for point in whole]
        by_tokens = [] if longest is None else [(seen, each[score]) for seen, each in longest.on_the_way]
        for what, values in (
            ("training pairs", by_text),
            ("target tokens of training, all text", by_tokens),
            ("parameters, all text", by_size),
        ):
            values = sorted(values)
            if len({x for x, _ in values}) > 1:
                half = max((each for each in values if each[0] <= HALF * values[-1][0]), default=values[0])
                overall, last = (slope(*start, *values[-1]) for start in (values[0], half))
                found.append(Doubling(what, score, overall, last))
    return found


def slope(x: float, y: float, other_x: float, other_y: float) -> float:
    """Return the difference in y for each doubling of x."""
    return (other_y - y) / math.log2(other_x / x)


def share_of_training(point: Point, share: float) -> dict[str, Any] | None:
    """Return the evaluation on the way that is nearest to a share of the training; None if none is `NEAR` it."""
    wanted = share * point.target_tokens
    seen, nearest = min(point.on_the_way, key=lambda each: abs(each[0] - wanted), default=(0, None))
    return nearest if abs(seen - wanted) <= NEAR * wanted else None
