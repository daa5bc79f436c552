import os

import pytest
import torch

from training.benchmarks.translators.workers import Workers


def test_batches_are_divided_among_processes_of_one_thread(tmp_path):
    def note(number):
        (tmp_path / str(number)).write_text(f"{os.getpid()} {torch.get_num_threads()}")

    workers = Workers({"note": note}, 2)
    workers.run("note", 3)
    said = [(tmp_path / str(number)).read_text().split() for number in range(3)]
    pids = [process.pid for process in workers.processes]
    workers.close()
    assert said == [[str(pids[number % 2]), "1"] for number in range(3)]


def test_a_task_that_fails_is_told_and_the_workers_end():
    def fail(number):
        raise ValueError(f"batch {number} is lost")

    workers = Workers({"fail": fail}, 2)
    with pytest.raises(RuntimeError, match="batch 0 is lost"):
        workers.run("fail", 1)
    workers.close()
    assert [process.exitcode for process in workers.processes] == [0, 0]
