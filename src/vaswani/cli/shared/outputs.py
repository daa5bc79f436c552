"""Files that a command writes when its work is done: refused before the work where they cannot be written."""

import os
from collections.abc import Mapping
from pathlib import Path

from vaswani.errors import UserError


def check_outputs(outputs: Mapping[str, str | None], others: Mapping[str, str]) -> None:
    """Check that all outputs can be written, and that each is a file of its own.

    Parameters
    ----------
    outputs : mapping of str to str or None
        Paths by their flags; None where a flag was not given.
    others : mapping of str to str
        Paths of files that must stay as they are, by what they are, in words.

    Raises
    ------
    UserError
        Naming the flag, and what is the same file.
    """
    taken = dict(others)
    for name, path in outputs.items():
        if path is None:
            continue
        for what, other in taken.items():
            if is_same_file(path, other):
                raise UserError(f"{name}={path!r} is {what} too: choose another file")
        check_can_be_written(name, path)
        taken[f"{name}={path!r}"] = path


def is_same_file(path: str, other: str) -> bool:
    """Say whether two paths are one file, whatever links lead there; /dev/null and other devices may be shared."""
    if os.path.exists(path) and os.path.exists(other):
        return os.path.isfile(path) and os.path.samefile(path, other)
    return os.path.realpath(path) == os.path.realpath(other)


def check_can_be_written(name: str, path: str) -> None:
    """Refuse a file that cannot be written, and leave it as it is."""
    if not Path(path).absolute().parent.is_dir():
        raise UserError(f"{name}={path!r} cannot be written: its folder does not exist")
    is_new = not os.path.exists(path)
    if not (is_new or os.path.isfile(path) or os.path.isdir(path)):
        return  # a pipe might wait for its reader, or take the end of this for the end of all
    try:
        with open(path, "ab"):
            pass
        if is_new:
            os.unlink(os.path.realpath(path))
    except OSError as error:
        raise cannot_be_written(name, path, error) from error


def write_output(name: str, path: str, text: str) -> None:
    """Write a file as UTF-8.

    Raises
    ------
    UserError
        If it cannot be written after all, as on a full disk.
    """
    try:
        Path(path).write_bytes(text.encode())
    except OSError as error:
        raise cannot_be_written(name, path, error) from error


def cannot_be_written(name: str, path: str, error: OSError) -> UserError:
    """Say which file cannot be written, and why."""
    return UserError(f"{name}={path!r} cannot be written: {error.strerror}")
