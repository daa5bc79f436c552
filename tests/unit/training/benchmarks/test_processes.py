import sys

import pytest

from training.benchmarks.processes import run_and_watch
from training.settings import ROOT
from vaswani.errors import UserError


def test_a_process_runs_in_the_repository_and_its_memory_is_watched():
    program = "import os; held = b'x' * 300_000_000; print(os.getcwd())"
    output, peak_bytes = run_and_watch([sys.executable, "-c", program])
    assert output == f"{ROOT}\n"
    assert 300_000_000 < peak_bytes < 100_000_000_000


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import nowhere", r"^a measurement failed: .*No module named 'nowhere'$"),
        ("import sys; sys.exit('error: too little memory')", r"^a measurement failed: too little memory$"),
        (
            "import sys; sys.exit('error: too little memory\\n=====\\nexitcode 1\\n=====')",
            r"^a measurement failed: too little memory$",
        ),
        ("import sys; sys.exit(3)", r"^a measurement failed: exit 3$"),
    ],
)
def test_a_measurement_that_fails_says_why(program, message):
    with pytest.raises(UserError, match=message):
        run_and_watch([sys.executable, "-c", program])


def test_what_this_process_holds_is_not_counted():
    held = b"x" * 300_000_000
    _, peak_bytes = run_and_watch([sys.executable, "-I", "-S", "-c", "pass"])
    assert 1_000_000 < peak_bytes < 100_000_000
    del held


def test_a_measurement_that_is_killed_says_so():
    with pytest.raises(UserError, match=r"^a measurement failed: exit -9$"):
        run_and_watch([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
