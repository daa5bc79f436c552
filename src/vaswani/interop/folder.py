"""A folder that is there whole or not at all."""

import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from vaswani.errors import UserError


@contextmanager
def new_folder(path: Path) -> Generator[Path, None, None]:
    """Yield a temporary folder beside `path`, which takes its name at the end of the block, and else is removed.

    Raises
    ------
    UserError
        If `path` exists, or cannot be written.
    """
    if path.exists():
        raise UserError(f"output={str(path)!r} exists: it must be a new folder, so that nothing is lost")
    try:
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{path.name}-", suffix=".unfinished", dir=path.absolute().parent))
    except OSError as error:
        raise UserError(f"output={str(path)!r} cannot be written: {error.strerror}") from error
    try:
        yield unfinished
        unfinished.chmod(0o755)
        unfinished.rename(path)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"output={str(path)!r} cannot be written: {reason}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
