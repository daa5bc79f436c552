"""Processes that share the memory of this one: forked when there are tasks, so that a model's weights exist once.

Each computes with one thread of PyTorch: the threads of OpenMP do not survive a fork, and who waits for them waits for
ever.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import torch

from .errors import UserError, WorkerEnded
from .models.int8_vaswani import is_quantized


Result = TypeVar("Result")

CAN_FORK = sys.platform == "linux"  # Windows cannot, and libraries of macOS fail in a process that was forked
CPU_SHARE = Path("/sys/fs/cgroup/cpu.max")  # CPU time in a period, in microseconds: Linux's cgroups, version 2
END_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use, of a container's share the whole ones."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = CPU_SHARE.read_text(encoding="ascii").split()
        return min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or no limit: "max"
        return cores


def keep_freed_memory() -> None:
    """Let glibc keep the memory that tensors free.

    To return it each time costs a CPU a fifth of its time in training, and a twentieth in a search with beams.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        trim_threshold, mmap_threshold = -1, -3  # as malloc.h numbers them
        libc.mallopt(trim_threshold, 2**31 - 1)
        libc.mallopt(mmap_threshold, 2**31 - 1)


def choose_workers(wanted: int | None, device: torch.device) -> int:
    """Return the number of workers: the one that is wanted, or one for each thread that PyTorch would use on a CPU.

    Raises
    ------
    UserError
        If it is more than one where nothing can be forked, on a GPU, or more than there are cores.
    """
    can_share = CAN_FORK and device.type == "cpu"
    if wanted is None:
        return min(torch.get_num_threads(), usable_cores()) if can_share else 1
    if wanted > 1 and not can_share:
        where = f"device {device}, platform {sys.platform}"
        raise UserError(f"workers={wanted} must be 1 here ({where}): more share the memory of a CPU, on Linux")
    if wanted > usable_cores():
        raise UserError(f"workers={wanted} must be at most {usable_cores()}, the number of cores that can be used")
    return wanted


def describe_workers(workers: int, model: Any) -> str:
    """Say who computes and how, such as "2 workers of 1 thread each, bfloat16, cpu"."""
    threads = f" of {torch.get_num_threads()} thread(s)" if model.device.type == "cpu" else ""
    who = f"{workers} workers of 1 thread each" if workers > 1 else f"1 worker{threads}"
    precision = "int8" if is_quantized(model) else str(model.dtype).removeprefix("torch.")
    compiled = ""
    if getattr(model.generation_config, "compile_config", None):
        seconds = "a few seconds, the very first time up to 20"
        is_recorded = model.device.type == "cuda"
        compiled = ", steps recorded" if is_recorded else f", compiled while the first batch waits: {seconds}"
    return f"{who}, {precision}, {model.device}{compiled}"


class Pool:
    """Processes that do tasks, and live until the pool is closed, or this process ends, however it does.

    They are forked when there is more than one task for the first time; a single worker, or a single task, is this
    process itself.

    Parameters
    ----------
    function : callable
        What it takes and returns is pickled on its way. What it changes is forgotten, and what changes here after the
        fork, it does not see.
    workers : int
        How many.
    """

    def __init__(self, function: Callable[[Any], Any], workers: int):
        self.function, self.size = function, workers
        self.processes = ExitStack()
        self.workers: list[Worker] = []
        self.count = 0  # of all tasks so far

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes."""
        self.processes.close()
        self.workers = []

    @property
    def is_started(self) -> bool:
        """Whether there are processes."""
        return bool(self.workers)

    def run(self, tasks: Sequence[Any]) -> Generator[tuple[int, Any], None, None]:
        """Yield the index of each task and what the function returned, begun in their order, as they are done.

        If the generator is closed before its end, or an error ends it, the processes end too.

        Raises
        ------
        UserError
            As the function raised it.
        WorkerEnded
            Naming the worker and what ended it.
        RuntimeError
            With the traceback of anything else that the function raised.
        """
        if min(len(tasks), self.size) <= 1:
            yield from ((index, self.function(task)) for index, task in enumerate(tasks))
            return
        if not self.is_started:
            self.workers = self.processes.enter_context(_started(self.function, self.size))
        try:
            yield from self._share_out(tasks)
        except BaseException:
            self.close()  # what its processes still do, nobody waits for
            raise

    def _share_out(self, tasks: Sequence[Any]) -> Generator[tuple[int, Any], None, None]:
        waiting, ready = enumerate(tasks), self.workers
        first, busy = self.count, set()
        self.count += len(tasks)
        while True:
            for worker, (index, task) in zip(ready, waiting, strict=False):
                worker.give(first + index, task)
                busy.add(worker)
            if not busy:
                return
            ready = [worker for worker in wait(busy) if isinstance(worker, Worker)]
            for worker in ready:
                busy.remove(worker)
                number, result = worker.take()
                yield number - first, result


class Worker:
    """A process that does tasks, seen from the one that gives them.

    Parameters
    ----------
    name : str
        Such as "worker 1 of 2".
    process : BaseProcess
    connection : Connection
        Through which tasks go and results come.
    """

    def __init__(self, name: str, process: BaseProcess, connection: Connection):
        self.name = name
        self.process = process
        self.connection = connection

    def fileno(self) -> int:
        """Return what `wait` waits for."""
        return self.connection.fileno()

    def give(self, number: int, task: Any) -> None:
        """Hand it a task."""
        with self._noticed():
            self.connection.send((number, task))

    def take(self) -> tuple[int, Any]:
        """Return the number of the task that it has done, and the result."""
        with self._noticed():
            number, result, error = self.connection.recv()
        if error is not None:
            raise error
        return number, result

    @contextmanager
    def _noticed(self) -> Generator[None, None, None]:
        try:
            yield
        except (EOFError, OSError) as error:
            self.process.join()
            status = self.process.exitcode or 0
            cause = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            raise WorkerEnded(f"{self.name} {cause}") from error


@contextmanager
def _started(function: Callable[[Any], Any], workers: int) -> Generator[list[Worker], None, None]:
    """Fork workers, and kill them at the end of the block."""
    fork = multiprocessing.get_context("fork")
    seed = int(torch.randint(2**62, ()))
    # Of this pipe nothing but our end can be written to. It closes when we end, by whatever signal: a worker that can
    # read its end knows that it is alone.
    readable, ours = os.pipe()
    started: list[Worker] = []
    try:
        for number in range(1, workers + 1):
            name = f"worker {number} of {workers}"
            here, there = fork.Pipe()
            process = fork.Process(target=_serve, args=(name, function, seed, there, readable, ours), daemon=True)
            with _forking():
                process.start()
            there.close()
            started.append(Worker(name, process, here))
        yield started
    finally:
        os.close(ours)
        os.close(readable)
        for worker in started:
            worker.process.kill()
            worker.process.join()
            worker.connection.close()


@contextmanager
def _forking() -> Generator[None, None, None]:
    """Keep our signals from a process that has just begun, and the tokenizers' threads, which it does not have."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads, which we take care of
            yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _serve(
    name: str, function: Callable[[Any], Any], seed: int, connection: Connection, readable: int, parents: int
) -> None:
    """Do tasks until the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal: the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
    os.close(parents)
    threading.Thread(target=lambda: os.read(readable, 1) or os._exit(1), daemon=True).start()
    torch.set_num_threads(1)
    keep_freed_memory()
    while True:
        number, task = connection.recv()
        torch.manual_seed(seed + number)  # whichever worker does it; samples of two tasks differ
        connection.send((number, *_outcome(name, function, task)))


def _outcome(name: str, function: Callable[[Any], Result], task: Any) -> tuple[Result | None, Exception | None]:
    try:
        return function(task), None
    except UserError as error:
        return None, UserError(str(error))
    except Exception:
        return None, RuntimeError(f"in {name}:\n{traceback.format_exc()}")
