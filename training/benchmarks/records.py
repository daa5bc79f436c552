"""The turns that benchmarks ask of processes, their results, and the rows of the tables."""

import dataclasses
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


GIGA = 1e9


@dataclass(frozen=True)
class Turn:
    """One turn of one contender of ``benchmark.py train``, as it is handed to its process.

    Parameters
    ----------
    contender : str
        A key of `contenders.CONTENDERS`.
    precision : str
        "fp32", "bf16", or "" where there is no model.
    device : str
        "cpu" or "cuda".
    flags : list of str
        The flags of run.py that name data and model.
    tokens : int
        Target tokens to measure, after a third as many for warm-up.
    seconds : float
        That warm-up and measurement may take at most, each.
    sentences : int
        In a batch of those contenders that count sentences.
    folder : str
        Where the contender may write.
    attention : str
        MarianMT's `attn_implementation`.
    processes : int
        That take the turn together, each with its share of the cores and of every batch.
    """

    contender: str
    precision: str
    device: str
    flags: list[str]
    tokens: int
    seconds: float
    sentences: int
    folder: str
    attention: str = "sdpa"
    processes: int = 1


@dataclass(frozen=True)
class TurnResult:
    """The result of a turn: target tokens a second (of "gemm": FLOP/s), and the most memory that it held."""

    rate: float
    peak_bytes: int


@dataclass(frozen=True)
class Rates:
    """The median, lowest and highest of several turns: rates, or ratios of two rates."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, rates: Sequence[float]) -> "Rates":
        """Summarize several turns."""
        return cls(statistics.median(rates), min(rates), max(rates))


def take_turns(works: Sequence[Callable[[], float]], turns: int) -> list[list[float]]:
    """Let all do their work in turns; return what each measured turn by turn, but for a first one, which warms up."""
    measured: list[list[float]] = [[] for _ in works]
    for turn in range(turns + 1):
        for work, own in zip(works, measured, strict=True):
            own.append(work())
        print(f"turn {turn}/{turns}", file=sys.stderr, flush=True)
    return [own[1:] for own in measured]


def titled(title: str) -> Any:
    """Declare a field of a row that may be absent, and that has another name in JSON and in the table."""
    return dataclasses.field(default=None, metadata={"title": title})


def as_record(row: Any) -> dict[str, Any]:
    """Return a row as it stands in JSON and in the table: by the titles of its fields, without those that are None."""
    titles = {field.name: field.metadata.get("title", field.name) for field in dataclasses.fields(row)}
    values = {name: vars(value) if isinstance(value, Rates) else value for name, value in vars(row).items()}
    return {titles[name]: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class TrainingRow:
    """A row of ``benchmark.py train``: a contender's target tokens a second, or another figure."""

    what: str
    precision: str | None = None
    rates: Rates | None = titled("target tokens/s")
    peak_memory: float | None = titled("peak memory, GB")
    ours_is_times: Rates | None = titled("ours is times")
    utilization: float | None = None


@dataclass(frozen=True)
class PlanningRow:
    """A row of ``benchmark.py plan``."""

    pairs: str
    length_groups: int
    updates: str
    seconds: float
    real_tokens: float | None = titled("real tokens, %")
    peak_memory: float | None = titled("peak memory, GB")


@dataclass(frozen=True)
class GenerationRow:
    """A row of ``benchmark.py generate``: a contender's target tokens a second, another figure, or what is missing."""

    what: str
    on: str | None = None
    search: str | None = None
    rates: Rates | None = titled("target tokens/s")
    bf16_is_times: Rates | None = titled("ours in bf16 is times")
    int8_is_times: Rates | None = titled("ours in int8 is times")


@dataclass(frozen=True)
class MemoryRow:
    """A row of ``benchmark.py memory``: a peak in GB, or how it grows along a line of them."""

    what: str
    model: str
    tokens: int | None = titled("batch tokens")
    length: int | None = titled("sentence length")
    vocabulary: int | None = None
    beams: int | None = None
    peak: float | None = titled("peak, GB")
    estimate: float | None = titled("estimate, GB")
    growth: str | None = titled("GB")


@dataclass(frozen=True)
class StartRow:
    """A row of ``benchmark.py start``: seconds until a process has written a line."""

    what: str
    median: float
    lowest: float
    highest: float
    times_ours: float | None = titled("times ours")


@dataclass(frozen=True)
class EngineRow:
    """A row of ``benchmark.py engines``: one way to compute the same translations."""

    engine: str
    precision: str
    sentences: Rates | None = titled("sentences/s")
    tokens: Rates | None = titled("tokens/s")
    first_line: Rates | None = titled("first line, s")
    peak_memory: float | None = titled("peak memory, GB")
    chrf: float | None = titled("chrF to float32")
    equal: float | None = titled("equal to float32, %")
