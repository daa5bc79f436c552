"""Files that may be compressed, opened as their decompressed content."""

import bz2
import gzip
import io
import lzma
import sys
import zipfile
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from vaswani.errors import UserError, missing_package
from vaswani.text.lines import decode_line


if sys.version_info >= (3, 14):
    from compression import zstd
else:
    try:
        from backports import zstd  # zstandard would take a file that is cut off for a whole one
    except ModuleNotFoundError:  # it comes with the extra [score]
        zstd = None

ZSTD = ".zst"
OPEN = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open} | ({ZSTD: zstd.open} if zstd else {})
SUFFIXES = (".gz", ".bz2", ".xz", ZSTD, ".zip")
# The libraries' errors for a file that is cut off, damaged, encrypted or not of the kind that its name says.
DAMAGES = (OSError, EOFError, RuntimeError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
DAMAGES += (zstd.ZstdError,) if zstd else ()


@contextmanager
def open_decompressed(path: str) -> Generator[BinaryIO, None, None]:
    """Open a file to be read from its beginning as bytes, decompressed if its name ends in one of `SUFFIXES`.

    Raises
    ------
    UserError
        If the file is missing, cannot be read, is damaged (when the damage is reached), is not of the kind that its
        name says, is a zip archive of several files, or needs a package that is not installed.
    """
    try:
        with _open(path) as file:
            yield file
    except DAMAGES as error:
        raise _as_user_error(path, error) from error


def lines_of(path: str) -> Iterator[str]:
    """Yield the lines of a text; only a line feed ends one, since Unicode's other separators may stand in a sentence.

    Raises
    ------
    UserError
        If the file is missing, damaged or not UTF-8 (with the line).
    """
    check_is_file(path)
    with open_decompressed(path) as file:
        for number, line in enumerate(file, start=1):
            yield decode_line(line, path, number)


def check_is_file(path: str) -> None:
    """Refuse a file that is not there, or is a folder or a pipe."""
    if Path(path).is_dir():
        raise UserError(f"the file {path} is a folder")
    if not Path(path).exists():
        raise UserError(f"the file {path} does not exist")
    if not Path(path).is_file():
        raise UserError(f"the file {path} must be a file, not a pipe or a device")


def name_within(path: str) -> str:
    """Return the name of a file's content: without the suffix of a compression, or as the zip archive names it.

    Raises
    ------
    UserError
        If a zip archive is damaged, or holds several files.
    """
    if not path.endswith(".zip"):
        return path.removesuffix(Path(path).suffix) if path.endswith(SUFFIXES) else path
    try:
        with zipfile.ZipFile(path) as archive:
            return _only_member(archive, path)
    except DAMAGES as error:
        raise _as_user_error(path, error) from error


def _open(path: str) -> BinaryIO:
    suffix = Path(path).suffix
    if suffix == ".zip":
        with zipfile.ZipFile(path) as archive:  # the opened member outlives it
            file = archive.open(_only_member(archive, path))
    elif suffix == ZSTD and ZSTD not in OPEN:
        raise missing_package(f"the file {path}", "backports.zstd", "score")
    elif suffix in OPEN:
        file = OPEN[suffix](path, "rb")
    else:
        return open(path, "rb")
    return io.BufferedReader(file, 1 << 16)  # their own readline is slow


def _only_member(archive: zipfile.ZipFile, path: str) -> str:
    names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]
    if len(names) != 1:
        raise UserError(f"the archive {path} must hold one file, but holds {len(names)}: {', '.join(names)}")
    return names[0]


def _as_user_error(path: str, error: Exception) -> UserError:
    reason = getattr(error, "strerror", None) or error or type(error).__name__
    return UserError(f"the file {path} cannot be read: {reason}")
