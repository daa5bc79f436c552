"""Reasons to end a run before its last update: signals, a time limit, a launcher that is gone, no more progress."""

import math
import os
import signal
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FrameType

from vaswani.interruption import Interrupted, SignalHandler


STARTED = time.monotonic()
PATIENCE = 0.5  # seconds between two looks for a reason to end
# Set by `accelerate launch` and torchrun, whose end should be ours.
LAUNCHERS = ("ACCELERATE_MIXED_PRECISION", "TORCHELASTIC_RUN_ID")


class StopRequest(SignalHandler):
    """Notes within a ``with`` block that the run should end, instead of ending it at once.

    Parameters
    ----------
    max_minutes : float or None
        Minutes since the process started after which it should.
    """

    def __init__(self, max_minutes: float | None):
        self.deadline = None if max_minutes is None else STARTED + 60 * max_minutes
        self.parent = os.getppid() if any(name in os.environ for name in LAUNCHERS) else None
        self.signal: str | None = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Note the signal."""
        self.signal = signal.Signals(number).name

    @contextmanager
    def raising(self) -> Generator[None, None, None]:
        """Raise `Interrupted` out of this block soon after there is a reason to end, whatever the block does.

        For work that takes long and changes nothing. A timer looks, so that the work itself need not.
        """
        handler = signal.signal(signal.SIGALRM, self._raise)
        timer = signal.setitimer(signal.ITIMER_REAL, PATIENCE, PATIENCE)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, *timer)
            signal.signal(signal.SIGALRM, handler)

    def _raise(self, number: int, _: FrameType | None) -> None:
        reason = self.reason()
        if reason is not None:
            raise Interrupted(reason)

    def seconds_left(self) -> float:
        """Return how long the run may still take."""
        return math.inf if self.deadline is None else self.deadline - time.monotonic()

    def reason(self) -> str | None:
        """Say why the run should end, or return None."""
        if self.signal is not None:
            return self.signal
        if self.seconds_left() <= 0:
            return "max_time is over"
        if self.parent is not None and os.getppid() != self.parent:
            return "the process that launched this one is gone"
        return None


def best_of(scores: Sequence[float], metric: str) -> int:
    """Return the index of the first best score: the lowest for "nll", the highest for the others."""
    best = min(scores) if metric == "nll" else max(scores)
    return list(scores).index(best)


def has_stalled(scores: Sequence[float], metric: str, patience: int | None) -> bool:
    """Return whether the last `patience` scores brought no new best one; never with no patience given."""
    return patience is not None and bool(scores) and len(scores) - 1 - best_of(scores, metric) >= patience
