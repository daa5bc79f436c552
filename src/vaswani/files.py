"""Files and folders that are there whole or not at all, also where several processes write them at once."""

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from .errors import UserError


@contextmanager
def whole_file(path: Path) -> Generator[Path, None, None]:
    """Yield a path beside `path`; what is written there replaces `path` at the end of the block.

    If the block ends in an error, what was at `path` before is untouched.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")  # a name that no other process writes to
    try:
        yield unfinished
        give_usual_mode(unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def give_usual_mode(path: Path) -> None:
    """Let those read a file, or a folder and its files, who may read any new one: some are made for their owner."""
    mask = os.umask(0)
    os.umask(mask)
    if path.is_dir():
        path.chmod(path.stat().st_mode | (0o777 & ~mask))
    for file in [path] if path.is_file() else path.rglob("*"):
        if file.is_file():
            file.chmod(file.stat().st_mode | (0o666 & ~mask))


def write_text(path: Path, text: str) -> None:
    """Write a text file, and its folder if need be.

    Raises
    ------
    OSError
        If it cannot be written, as on a full disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8", newline="\n")


def check_is_new(path: Path, name: str = "output") -> None:
    """Refuse a path that exists, even as a broken link; `name` is what the user set."""
    if os.path.lexists(path):
        raise UserError(f"{name}={str(path)!r} exists: it must be a new folder, so that nothing is lost")


@contextmanager
def new_folder(path: Path, name: str = "output") -> Generator[Path, None, None]:
    """Yield a temporary folder beside `path`, which takes its name at the end of the block, and else is removed.

    Raises
    ------
    UserError
        If `path` exists, or cannot be written, with `name` as what the user set.
    """
    check_is_new(path, name)
    try:
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{path.name}-", suffix=".unfinished", dir=path.absolute().parent))
    except OSError as error:
        raise UserError(f"{name}={str(path)!r} cannot be written: {error.strerror}") from error
    try:
        yield unfinished
        give_usual_mode(unfinished)
        unfinished.rename(path)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{name}={str(path)!r} cannot be written: {reason}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
