"""Signals to this very process: at once, deferred and repeated."""

import os
import signal
import sys
from collections.abc import Callable

import pytest

from vaswani.interruption import Interrupted, Interruption
from vaswani.workers import CAN_FORK


SIGNALS = signal.SIGINT, signal.SIGTERM


def send(number: int) -> None:
    os.kill(os.getpid(), number)
    signal.getsignal(number)  # Python's handler runs before this is over


def interrupted(work: Callable[[Interruption], None]) -> int | None:
    """Return the signal that ended some work; None if it came to its end."""
    try:
        with Interruption() as interruption:
            work(interruption)
    except Interrupted as error:
        return error.number
    return None


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_the_work_at_once_and_says_which_it_was(number):
    done = []

    def work(_: Interruption) -> None:
        send(number)
        done.append("went past the signal")

    assert interrupted(work) == number
    assert done == []
    assert interrupted(lambda _: None) is None
    with pytest.raises(Interrupted, match=f"^{signal.Signals(number).name}$"), Interruption():
        send(number)


def test_the_handlers_from_before_come_back():
    before = [signal.getsignal(number) for number in SIGNALS]

    def work(_: Interruption) -> None:
        assert all(signal.getsignal(number) not in before for number in SIGNALS)
        raise RuntimeError("the work's own error")

    with pytest.raises(RuntimeError, match="the work's own error"):
        interrupted(work)
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.parametrize("number", SIGNALS)
def test_deferred_work_is_finished_first(number):
    done = []

    def work(interruption: Interruption) -> None:
        with interruption.deferred():
            send(number)
            done.append("finished")
        done.append("went on")

    assert interrupted(work) == number
    assert done == ["finished"]


@pytest.mark.parametrize("second", SIGNALS)
def test_a_second_signal_does_not_wait(second):
    done = []

    def work(interruption: Interruption) -> None:
        with interruption.deferred():
            send(signal.SIGTERM)
            done.append("went past the first")
            send(second)
            done.append("went past the second")

    assert interrupted(work) == second
    assert done == ["went past the first"]


def test_a_signal_after_deferred_work_does_not_wait():
    done = []

    def work(interruption: Interruption) -> None:
        for _ in range(2):
            with interruption.deferred():
                done.append("deferred")
        send(signal.SIGINT)
        done.append("went past the signal")

    assert interrupted(work) == signal.SIGINT
    assert done == ["deferred", "deferred"]


def test_a_library_that_catches_every_error_of_its_own_does_not_catch_it():
    def work(_: Interruption) -> None:
        try:
            send(signal.SIGTERM)
        except Exception:
            pytest.fail("taken for an error of the library")

    assert interrupted(work) == signal.SIGTERM


def test_a_signal_that_python_dropped_is_raised_again():
    class Deleted:
        def __del__(self):
            send(signal.SIGTERM)

    done = []

    def work(interruption: Interruption) -> None:
        Deleted()
        done.append("went on")
        with interruption.deferred():
            done.append("deferred")

    assert interrupted(work) == signal.SIGTERM
    assert done == ["went on"]


def test_an_error_in_deferred_work_is_not_replaced_by_the_signal():
    def work(interruption: Interruption) -> None:
        with interruption.deferred():
            send(signal.SIGINT)
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        interrupted(work)


@pytest.mark.parametrize("number", SIGNALS)
def test_what_a_library_makes_of_a_signal_is_the_signal_still(number):
    def work(_: Interruption) -> None:
        try:
            send(number)
        finally:
            raise TimeoutError("of a process that has ended too")

    assert interrupted(work) == number


@pytest.mark.skipif(not CAN_FORK, reason="processes are not forked here")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 7), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_a_forked_process_leaves_ctrl_c_to_its_parent_and_ends_without_a_word(number, status):
    def work(_: Interruption) -> None:
        child = os.fork()
        if child == 0:
            try:
                send(number)
                os._exit(7)
            finally:
                os._exit(1)  # where pytest must not go on
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == status

    assert interrupted(work) is None


def test_of_errors_that_python_drops_nothing_is_printed_once_it_ends(monkeypatch):
    printed: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: printed.append(str(dropped.exc_value)))

    class Broken:
        def __init__(self, name: str):
            self.name = name

        def __del__(self):
            raise TimeoutError(self.name)

    def work(_: Interruption) -> None:
        Broken("before")
        try:
            send(signal.SIGTERM)
        finally:
            Broken("on the way out")

    assert interrupted(work) == signal.SIGTERM
    Broken("after")
    assert printed == ["before", "after"]
