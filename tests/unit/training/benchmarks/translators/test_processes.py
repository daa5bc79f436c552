import os
import sys

import pytest

from training.benchmarks.translators.processes import in_processes
from training.benchmarks.translators.work import Contender
from vaswani.errors import UserError


def who_notes_processes(file, name):
    def note():
        with open(file, "a", encoding="utf-8") as notes:
            notes.write(f"{name} {os.getpid()}\n")

    return [Contender(name, "bf16", "2 threads", beams, note, is_cut=beams == 4) for beams in (1, 4)]


def who_ends():
    sys.exit(3)


class Maker:
    """A maker that can be sent to another process."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __call__(self):
        return self.function(*self.arguments)


def test_each_translates_in_a_process_of_its_own_which_ends_with_the_block(tmp_path):
    notes = tmp_path / "notes"
    makers = [Maker(who_notes_processes, notes, name) for name in ("ours", "theirs")]
    with in_processes(makers) as contenders:
        assert [(each.name, each.beams, each.is_cut) for each in contenders] == [
            ("ours", 1, False),
            ("ours", 4, True),
            ("theirs", 1, False),
            ("theirs", 4, True),
        ]
        for contender in contenders[::-1]:
            contender.translate()
    lines = [line.split() for line in notes.read_text(encoding="utf-8").splitlines()]
    assert [name for name, _ in lines] == ["theirs", "theirs", "ours", "ours"]  # done by the time the call returns
    processes = [int(process) for _, process in lines]
    assert processes[0] == processes[1] != processes[2] == processes[3]
    assert os.getpid() not in processes
    for process in set(processes):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_who_ends_is_reported(tmp_path):
    made = [Maker(who_notes_processes, tmp_path / "notes", "ours"), Maker(who_ends)]
    with (
        pytest.raises(UserError, match="a process of the benchmark has ended: what it wrote above says why"),
        in_processes(made),
    ):
        pass
