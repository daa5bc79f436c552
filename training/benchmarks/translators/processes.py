"""A process for each model or library, so that nobody's threads and memory are in the way of another's.

GNU's OpenMP puts waiting threads to sleep at once where a process has more of them than the machine has cores: beside
another library in the same process, whatever uses several threads would be many times slower than alone.
"""

import multiprocessing
import signal
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from training.benchmarks.translators.work import Contender
from vaswani.errors import UserError


@contextmanager
def in_processes(makers: Sequence[Callable[[], list[Contender]]]) -> Generator[list[Contender], None, None]:
    """Give each maker a process, which makes its contenders there; yield all, which translate when they are called.

    Raises
    ------
    UserError
        If a process has ended; what it wrote says why.
    """
    spawn = multiprocessing.get_context("spawn")
    started = []
    try:
        for make in makers:
            here, there = spawn.Pipe()
            process = spawn.Process(target=_serve, args=(there, make))
            process.start()
            there.close()
            started.append((process, here))
        yield [contender for _, connection in started for contender in _contenders(connection)]
    finally:
        for process, connection in started:
            process.kill()  # its workers, if it has any, end with it
            process.join()
            connection.close()


def _serve(connection: Connection, make: Callable[[], list[Contender]]) -> None:
    """Make the contenders, tell who they are, and let translate whoever is asked to."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal: the parent decides
    contenders = make()
    connection.send(
        [{name: value for name, value in vars(each).items() if name != "translate"} for each in contenders]
    )
    while True:
        try:
            number = connection.recv()
        except EOFError:
            return
        contenders[number].translate()
        connection.send(None)


def _contenders(connection: Connection) -> list[Contender]:
    entries = _receive(connection)
    return [
        Contender(**entry, translate=partial(_translate, connection, number)) for number, entry in enumerate(entries)
    ]


def _translate(connection: Connection, number: int) -> None:
    connection.send(number)
    _receive(connection)


def _receive(connection: Connection) -> Any:
    try:
        return connection.recv()
    except EOFError as error:
        raise UserError("a process of the benchmark has ended: what it wrote above says why") from error
