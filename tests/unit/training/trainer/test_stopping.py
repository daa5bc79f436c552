import os
import signal
import time

import pytest

from training.trainer import stopping
from training.trainer.stopping import StopRequest, best_of, has_stalled
from vaswani.interruption import Interrupted


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_noted_and_its_handler_restored(number):
    before = signal.getsignal(number)
    with StopRequest(None) as stop:
        assert stop.reason() is None
        os.kill(os.getpid(), number)
        assert stop.reason() == signal.Signals(number).name
    assert signal.getsignal(number) is before


def test_long_work_is_left_soon_after_a_signal_and_not_without_one():
    handler, timer = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    with StopRequest(None) as stop:
        with stop.raising():
            time.sleep(3 * stopping.PATIENCE)
        os.kill(os.getpid(), signal.SIGTERM)
        started = time.monotonic()
        with pytest.raises(Interrupted, match="SIGTERM"), stop.raising():
            time.sleep(60)
        assert time.monotonic() - started < 10
    assert signal.getsignal(signal.SIGALRM) is handler
    # The timer of pytest-timeout, where there is one, goes on, and ours does not.
    assert (signal.getitimer(signal.ITIMER_REAL)[0] > stopping.PATIENCE) == (timer[0] > 0)
    assert signal.getitimer(signal.ITIMER_REAL)[1] == timer[1]


def test_time_is_counted_from_the_start_of_the_process(monkeypatch):
    monkeypatch.setattr(stopping, "STARTED", 1000.0)
    stop = StopRequest(2.0)  # minutes
    for now, reason in ((1000.0, None), (1119.9, None), (1120.0, "max_time is over")):
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        assert stop.reason() == reason


def test_a_launcher_that_is_gone_ends_the_run_and_a_shell_does_not(monkeypatch):
    for launched in (True, False):
        for name in stopping.LAUNCHERS:
            monkeypatch.delenv(name, raising=False)
        if launched:
            monkeypatch.setenv(stopping.LAUNCHERS[0], "no")
        stop = StopRequest(None)
        with monkeypatch.context() as patch:
            patch.setattr(os, "getppid", lambda: 1)
            assert (stop.reason() is not None) == launched


def test_patience_counts_evaluations_since_the_first_best():
    assert best_of([3.0, 1.0, 1.0], "nll") == 1
    assert best_of([3.0, 4.0, 4.0], "sacrebleu") == 1
    assert not has_stalled([], "nll", 1)
    assert not has_stalled([3, 2, 2.5], "nll", 2)
    assert has_stalled([3, 2, 2.5, 2.0], "nll", 2)
    assert not has_stalled([3, 2, 2.5, 1.9], "nll", 2)
    assert not has_stalled([1, 2, 3], "nll", None)
