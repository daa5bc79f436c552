"""SIGINT and SIGTERM as an exception, deferred where work must not be left half done."""

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType


class Interrupted(Exception):
    """The process was asked to end.

    Parameters
    ----------
    reason : str
        Such as the name of a signal.
    number : int or None, default=None
        The signal's, where it was one.
    """

    def __init__(self, reason: str, number: int | None = None):
        super().__init__(reason)
        self.number = number


@contextmanager
def handled_by(handler: Callable[[int, FrameType | None], None]) -> Generator[None, None, None]:
    """Within this block SIGINT and SIGTERM call `handler`."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


class Interruption:
    """Within a ``with`` block SIGINT and SIGTERM raise `Interrupted`, but never within `deferred`."""

    def __init__(self) -> None:
        self.is_deferred = False
        self.pending: int | None = None

    def __enter__(self) -> "Interruption":
        self.handling = handled_by(self._handle)
        self.handling.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.handling.__exit__(None, None, None)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.is_deferred and self.pending is None:  # a second signal is not deferred
            self.pending = number
        else:
            raise Interrupted(signal.Signals(number).name, number)

    @contextmanager
    def deferred(self) -> Generator[None, None, None]:
        """Within this block a signal waits until the end of the block; a second one does not wait."""
        self.is_deferred = True
        try:
            yield
        finally:
            self.is_deferred = False
        if self.pending is not None:
            raise Interrupted(signal.Signals(self.pending).name, self.pending)
