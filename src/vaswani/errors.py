"""The error that users read as one sentence, without a traceback."""


class UserError(ValueError):
    """Something that the user can put right; its message is one sentence that says what is allowed."""


class WorkerEnded(UserError):
    """A worker was killed, or ended in another way before its work was done."""


def missing_package(what: str, error: ModuleNotFoundError, extra: str) -> UserError:
    """Say which package `what` needs, and which extra of this one brings it."""
    return UserError(
        f"{what} needs the package {error.name}, which is not installed: install this package with its extra [{extra}]"
    )
