"""`python -m vaswani` takes its arguments from the command line, and its exit status is that of the command."""

import runpy
import sys

import pytest

from vaswani.cli import COMMANDS


@pytest.mark.parametrize(
    ("arguments", "status", "output", "error"),
    [
        ([], 0, "usage: vaswani COMMAND ...\n", ""),
        (
            ["trans"],
            1,
            "",
            f"error: command 'trans' must be one of {', '.join(COMMANDS)}\n",
        ),
    ],
)
def test_it_is_the_console_command(arguments, status, output, error, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["vaswani", *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("vaswani", run_name="__main__")
    assert ended.value.code == status
    said = capsys.readouterr()
    assert said.out.startswith(output)
    assert said.err == error


def test_importing_it_runs_nothing(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["vaswani", "translat"])
    runpy.run_module("vaswani.__main__", run_name="vaswani.__main__")
    assert capsys.readouterr() == ("", "")
