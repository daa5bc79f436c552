"""The error that users read as one sentence, without a traceback."""

from importlib import import_module
from pathlib import Path
from typing import Any


class UserError(ValueError):
    """Something that the user can put right; its message is one sentence that says what is allowed."""


class WorkerEnded(UserError):
    """A worker was killed, or ended in another way before its work was done."""


def first_line(error: Exception) -> str:
    """Return the first line of what an error says, or its name if it says nothing."""
    return str(error).strip().split("\n")[0] or type(error).__name__


def not_found(name: str, error: Exception, setting: str = "model") -> UserError:
    """Say that a model is neither in a folder nor on the Hub, for us at least."""
    hint = "" if Path(name).exists() else " (a private one after `hf auth login`)"
    return UserError(
        f"{setting}={name!r} must be a model folder or a Hub id that can be reached{hint}: {first_line(error)}"
    )


def check_is_unicode(name: str, text: str) -> None:
    """Refuse a surrogate by itself, which Python puts where bytes of a command line are not UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"{name}={text!r} must be Unicode, in UTF-8: its character {error.start + 1} is a surrogate by itself"
        ) from error


def require(name: str, what: str, extra: str) -> Any:
    """Import a package that `what` needs.

    Raises
    ------
    UserError
        If it is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise missing_package(what, error.name, extra) from error


def missing_package(what: str, name: str | None, extra: str) -> UserError:
    """Say which package `what` needs, and with which command it comes."""
    return UserError(
        f"{what} needs the package {name}, which is not installed: in a clone of this project, pip install "
        f'".[{extra}]"'
    )
