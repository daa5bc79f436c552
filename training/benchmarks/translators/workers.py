"""Translating in several processes, each with one core, that share the memory of the weights."""

import multiprocessing
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection

import torch


class Workers:
    """Processes that wait for tasks. They are forked: what this process holds already, they need not copy.

    Parameters
    ----------
    tasks : mapping of str to callable
        By name, functions of the number of a batch.
    count : int
        Processes.

    Notes
    -----
    A fork takes no threads along, so PyTorch must not have used several before.
    """

    def __init__(self, tasks: Mapping[str, Callable[[int], None]], count: int):
        context = multiprocessing.get_context("fork")
        self.pipes, self.processes = [], []
        for _ in range(count):
            here, there = context.Pipe()
            self.pipes.append(here)
            process = context.Process(target=work_off, args=(tasks, there, list(self.pipes)), daemon=True)
            process.start()
            there.close()
            self.processes.append(process)

    def run(self, task: str, batches: int) -> None:
        """Divide the batches among the processes, and wait for the last one.

        Raises
        ------
        RuntimeError
            If one fails.
        """
        for number, pipe in enumerate(self.pipes):
            pipe.send((task, range(number, batches, len(self.pipes))))
        failures = [failure for failure in [pipe.recv() for pipe in self.pipes] if failure]
        if failures:
            raise RuntimeError(failures[0])

    def close(self) -> None:
        """End the processes."""
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join()


def work_off(tasks: Mapping[str, Callable[[int], None]], pipe: Connection, inherited: Sequence[Connection]) -> None:
    """Do, in a process of its own, what comes through a pipe, until nothing can come any more.

    The ends of pipes that were `inherited` are closed: while a worker held one, nobody would learn that it was closed.
    """
    for other in inherited:
        other.close()
    torch.set_num_threads(1)
    while True:
        try:
            task, numbers = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            for number in numbers:
                tasks[task](number)
            pipe.send(None)
        except Exception:
            pipe.send(traceback.format_exc())
