"""Lines of text in and out, as bytes: only a line feed ends a line, and only whole lines are written.

Python's own text files would also end lines at characters that may stand within a sentence (U+0085, U+2028, a lone
carriage return), and so lose the line numbers by which translations belong to sources.
"""

import os
import select
import stat
from collections import deque
from collections.abc import Iterator, Sequence

from vaswani.errors import UserError


CHUNK_BYTES = 1 << 20
PATIENCE = 0.05  # seconds to wait for another chunk of a pipe before a window ends


def decode_line(raw: bytes, name: str, number: int, errors: str = "strict") -> str:
    """Decode one line without its LF or CR LF, and the first line without a byte order mark.

    Parameters
    ----------
    raw : bytes
    name : str
        The file's name, for the error.
    number : int
        The line's number, from 1.
    errors : {"strict", "replace"}, default="strict"
        Whether bytes that are not UTF-8 are an error, or become U+FFFD.

    Raises
    ------
    UserError
        If the line is not UTF-8.
    """
    raw = raw.removesuffix(b"\n").rstrip(b"\r")
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8", errors)
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not UTF-8 in line {number}: {error.reason}") from error


def count_lines(path: str, errors: str = "strict") -> int | None:
    """Count the lines of a file and check that each can be decoded; None for a pipe, which can be read only once.

    Raises
    ------
    UserError
        If the file is missing, a directory, cannot be read, or is not UTF-8 (with the line).
    """
    try:
        if os.path.isdir(path):
            raise UserError(f"{path} is a directory: it must be a file or a pipe")
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        number = 0
        with open(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                decode_line(raw, path, number, errors)
        return number
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def read_windows(descriptor: int, size: int, skip: int = 0) -> Iterator[list[bytes]]:
    """Yield lists of lines: all that can be read without waiting, up to `size` lines, and at least one.

    So a file comes in windows of `size` lines; lines that a person or a slow program writes to a pipe come at once.

    Parameters
    ----------
    descriptor : int
        An open file or pipe, which may be endless.
    size : int
        Largest number of lines in a list.
    skip : int, default=0
        Number of lines to leave out at the beginning.

    Raises
    ------
    UserError
        At the end, if there were fewer lines than that.
    """
    lines: deque[bytes] = deque()
    rest, is_open, done = b"", True, skip
    while is_open or lines:
        while is_open and len(lines) < size and (not lines or select.select([descriptor], [], [], PATIENCE)[0]):
            chunk = os.read(descriptor, CHUNK_BYTES)
            is_open = bool(chunk)
            *whole, rest = (rest + chunk).split(b"\n")
            if not is_open and rest:
                whole.append(rest)  # the last line need not be ended
            lines.extend(whole[skip:])
            skip = max(0, skip - len(whole))
        if lines:
            yield [lines.popleft() for _ in range(min(size, len(lines)))]
    if skip:
        raise UserError(f"{done:,} lines are done but the input has {done - skip:,}: not what became of it")


def whole_lines(path: str, group: int) -> tuple[int, int]:
    """Return how many whole groups of lines a file has, and their bytes: it may end half-written, if interrupted."""
    lines = position = end = 0
    with open(path, "rb") as file:
        for raw in file:
            position += len(raw)
            if raw.endswith(b"\n"):
                lines += 1
                end = position if lines % group == 0 else end
    return lines // group, end


def write_lines(descriptor: int, lines: Sequence[str]) -> None:
    """Write lines, each ended by a line feed; a line feed within one becomes a space."""
    data = memoryview("".join(line.replace("\n", " ") + "\n" for line in lines).encode("utf-8"))
    while data:
        data = data[os.write(descriptor, data) :]
