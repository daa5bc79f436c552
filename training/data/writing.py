"""Files that are written as a whole or not at all, also by several processes at once."""

import os
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Write a text file, and its folder if need be, so that nobody ever sees half of it.

    Raises
    ------
    OSError
        If it cannot be written, as on a full disk; what was there before is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")  # a name that no other process writes to
    try:
        unfinished.write_text(text, encoding="utf-8", newline="\n")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
