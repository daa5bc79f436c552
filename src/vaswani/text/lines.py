"""Lines of text in and out, as bytes: nothing but a line feed ends a line, and what is written is always whole lines.

Python's own text files would also end lines at what some text holds within a sentence (U+0085, U+2028, a lone carriage
return), and so lose the count of lines by which translations and sources belong together.
"""

import os
import select
import stat
from collections import deque
from collections.abc import Iterator, Sequence

from vaswani.errors import UserError


CHUNK_BYTES = 1 << 20
PATIENCE = 0.05  # seconds that a pipe may take between two chunks of what is read together


def decode_line(raw: bytes, name: str, number: int, errors: str = "strict") -> str:
    """Decode one line without its end, LF or CR LF, and the first one without a byte order mark.

    Parameters
    ----------
    raw : bytes
    name : str
        Where the line stands, for the error.
    number : int
        Its number there, from 1.
    errors : {"strict", "replace"}, default="strict"
        What becomes of bytes that are not UTF-8: an error, or U+FFFD.

    Raises
    ------
    UserError
        If it is not UTF-8.
    """
    raw = raw.removesuffix(b"\n").rstrip(b"\r")
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8", errors)
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not UTF-8 in line {number}: {error.reason}") from error


def count_lines(path: str, errors: str = "strict") -> int | None:
    """Count the lines of a file after checking that each can be decoded; None where it can be read only once.

    Raises
    ------
    UserError
        If the file is missing, cannot be read, or is not UTF-8 (with the line).
    """
    try:
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
    """Yield lists of lines: what can be read without waiting, up to `size` lines, and at least one.

    A file so comes in windows of `size` lines; what a person or a slow program writes into a pipe comes at once.

    Parameters
    ----------
    descriptor : int
        Of an open file or pipe, which may be endless.
    size : int
        Most lines of a window.
    skip : int, default=0
        Lines at the beginning that are left out.
    """
    lines: deque[bytes] = deque()
    rest, is_open = b"", True
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


def keep_whole_lines(path: str, group: int = 1) -> int:
    """Cut off what an interrupted program left half written at the end of a file.

    Parameters
    ----------
    path : str
    group : int, default=1
        Lines that belong together.

    Returns
    -------
    int
        Groups that the file holds; 0 if there is no file.
    """
    if not os.path.exists(path):
        return 0
    lines = position = end = 0
    with open(path, "rb+") as file:
        for raw in file:
            position += len(raw)
            if raw.endswith(b"\n"):
                lines += 1
                end = position if lines % group == 0 else end
        file.truncate(end)
    return lines // group


def write_lines(descriptor: int, lines: Sequence[str]) -> None:
    """Write lines, each ended by a line feed; a line feed within one becomes a space."""
    data = memoryview("".join(line.replace("\n", " ") + "\n" for line in lines).encode("utf-8"))
    while data:
        data = data[os.write(descriptor, data) :]
