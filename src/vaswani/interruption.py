"""SIGINT and SIGTERM as an exception, deferred where work must not be left half done."""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Self


class Interrupted(BaseException):
    """The process was asked to end. No ``except Exception`` of a library may take it for an error of its own.

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


class SignalHandler:
    """Within a ``with`` block SIGINT and SIGTERM call `handle`."""

    def __enter__(self) -> Self:
        self.before = {number: signal.signal(number, self.handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Do what the signal asks for."""
        raise NotImplementedError


class Interruption(SignalHandler):
    """Within a ``with`` block SIGINT and SIGTERM raise `Interrupted`, but never within `deferred`."""

    def __init__(self) -> None:
        self.is_deferred = False
        self.received: int | None = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise `Interrupted`, or note the signal while that is deferred."""
        is_second, self.received = self.received is not None, number
        if is_second or not self.is_deferred:  # a second signal is not deferred
            self._raise_if_received()

    def _raise_if_received(self) -> None:
        if self.received is not None:
            raise Interrupted(signal.Signals(self.received).name, self.received)

    @contextmanager
    def deferred(self) -> Generator[None, None, None]:
        """Within this block a signal waits until the end of the block; a second one does not wait.

        An earlier signal is raised again: Python drops an exception that hits it while it deletes an object.
        """
        self._raise_if_received()
        self.is_deferred = True
        try:
            yield
        finally:
            self.is_deferred = False
        self._raise_if_received()
