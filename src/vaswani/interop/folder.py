"""A folder that is there whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vaswani.errors import UserError
from vaswani.models.configuration_vaswani import VaswaniConfig


# Beside another library's files: our config, from which the search knows its lengths and ids.
CONFIG = "vaswani_config.json"


def check_is_new(path: Path) -> None:
    """Refuse a path at which there is something, be it a link to nothing.

    Raises
    ------
    UserError
        If there is.
    """
    if os.path.lexists(path):
        raise UserError(f"output={str(path)!r} exists: it must be a new folder, so that nothing is lost")


@contextmanager
def new_folder(path: Path) -> Generator[Path, None, None]:
    """Yield a temporary folder beside `path`, which takes its name at the end of the block, and else is removed.

    Raises
    ------
    UserError
        If `path` exists, or cannot be written.
    """
    check_is_new(path)
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


def save_beside(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write what a search of ours needs beside another library's files: tokenizer, settings and config."""
    tokenizer.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    (folder / CONFIG).write_text(model.config.to_json_string(use_diff=False), encoding="utf-8")


def load_config(folder: Path) -> VaswaniConfig:
    """Read the config that `save_beside` wrote."""
    return VaswaniConfig.from_json_file(folder / CONFIG)
