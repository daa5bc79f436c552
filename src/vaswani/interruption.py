"""SIGINT and SIGTERM as an exception, deferred where work must not be left half done."""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


class Interrupted(Exception):
    """The process was asked to end, by the signal `number`."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


class Interruption:
    """Within a ``with`` block SIGINT and SIGTERM raise `Interrupted`, but never within `deferred`."""

    def __init__(self) -> None:
        self.is_deferred = False
        self.pending: int | None = None

    def __enter__(self) -> "Interruption":
        self.before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.is_deferred and self.pending is None:  # a second signal is not deferred
            self.pending = number
        else:
            raise Interrupted(number)

    @contextmanager
    def deferred(self) -> Generator[None, None, None]:
        """Within this block a signal waits until the end of the block; a second one does not wait."""
        self.is_deferred = True
        try:
            yield
        finally:
            self.is_deferred = False
        if self.pending is not None:
            raise Interrupted(self.pending)
