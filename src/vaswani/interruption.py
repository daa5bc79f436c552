"""SIGINT and SIGTERM as an exception, deferred where work must not be left half done."""

import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self


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
    """Within a ``with`` block SIGINT and SIGTERM raise `Interrupted`, but never within `deferred`.

    The block ends with `Interrupted` also where a library, on the way out, raises an error of its own in its place. Of
    errors that Python drops on that way, nothing is printed.
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        self.is_deferred = False
        self.received: int | None = None
        self.raised: Interrupted | None = None

    def __enter__(self) -> Self:
        self.hook_before, sys.unraisablehook = sys.unraisablehook, self._tell_unless_ending
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__()
        sys.unraisablehook = self.hook_before
        if self.raised is not None and isinstance(error[1], Exception):
            raise self.raised from error[1]

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise `Interrupted`, or note the signal while that is deferred."""
        if os.getpid() != self.process:
            self._handle_in_fork(number)
            return
        is_second, self.received = self.received is not None, number
        if is_second or not self.is_deferred:  # a second signal is not deferred
            self._raise_if_received()

    def _tell_unless_ending(self, dropped: Any) -> None:
        if self.raised is None:
            self.hook_before(dropped)

    @staticmethod
    def _handle_in_fork(number: int) -> None:
        """End without a word at SIGTERM; Ctrl-C reaches every process of a terminal, and the parent decides."""
        if number == signal.SIGTERM:
            os._exit(128 + number)

    def _raise_if_received(self) -> None:
        if self.received is not None:
            self.raised = Interrupted(signal.Signals(self.received).name, self.received)
            raise self.raised

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
