"""The output directory of a run: who may write to it, and what it holds already."""

import filecmp
import os
import socket
import sys
import time
from collections.abc import Collection, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from filelock import FileLock, SoftFileLock, Timeout

from training.checkpoints.files import check_checkpoint, list_checkpoints
from training.checkpoints.fingerprint import FREE
from training.recipe import parse_settings
from training.settings import TrainingSettings
from training.trainer.logbook import REPLACED
from vaswani.errors import UserError


LOCK, OWNER = ".lock", ".owner"
PATIENCE = 5.0  # seconds: a process that was killed a moment ago may not be gone yet


def make_output_dir(name: str | Path) -> Path:
    """Create an output directory, or refuse one that cannot be written to."""
    directory = Path(name)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / f".write-test-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"output_dir={str(name)!r} cannot be written to: {error.strerror}") from error
    return directory


@contextmanager
def own(directory: Path) -> Generator[None, None, None]:
    """Keep all other processes that ask for it out of an output directory.

    The lock is `flock`'s, on NFS too: the system takes it back from a process that ends, however that ends, and no
    child inherits it. A file system without it gets a lock file, which a process leaves behind if it is killed.

    Parameters
    ----------
    directory : Path
        One that exists.

    Raises
    ------
    UserError
        If another process owns it, with its host, its id and since when; or if it cannot be locked.
    """
    lock, owner = FileLock(directory / LOCK), directory / OWNER
    now = time.strftime("%Y-%m-%d %H:%M:%S %z")
    try:
        lock.acquire(timeout=PATIENCE)
        owner.write_text(f"process {os.getpid()} on host {socket.gethostname()}, since {now}", encoding="utf-8")
    except Timeout as error:
        name = owner.read_text(encoding="utf-8") if owner.exists() else "a process that has not given its name yet"
        killed = f" (if that was killed, remove {lock.lock_file})" if isinstance(lock, SoftFileLock) else ""
        raise UserError(
            f"output_dir={str(directory)!r} is in use by {name}{killed}: wait until it has ended, or choose another "
            "directory"
        ) from error
    except OSError as error:
        raise UserError(f"output_dir={str(directory)!r} cannot be locked: {error}") from error
    try:
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()


@contextmanager
def claim_output_dir(settings: TrainingSettings, accelerator: Accelerator) -> Generator[None, None, None]:
    """Own the output directory of a run, unless it holds another run; the main process does it for all.

    Raises
    ------
    SystemExit
        In all processes, if it is refused, once the main one has said why: a launcher ends it as soon as others end.
    """
    with ExitStack() as stack:
        is_refused = False
        if accelerator.is_main_process:
            try:
                stack.enter_context(own(make_output_dir(settings.run.output_dir)))
                check_output_dir(settings)
            except UserError as error:
                print(f"error: {error}", file=sys.stderr, flush=True)
                is_refused = True
        [is_refused] = broadcast_object_list([is_refused])
        if is_refused:
            sys.exit(1)
        yield


def check_output_dir(settings: TrainingSettings) -> None:
    """Refuse an output directory that holds another run, and a checkpoint to resume from that it does not hold.

    A directory with folders of the names that a run replaces, but without a run, is somebody else's.
    """
    directory, which = Path(settings.run.output_dir), settings.run.resume_from_checkpoint
    if which not in (None, "latest"):
        check_checkpoint(directory / "checkpoints", which)
    if settings.run.overwrite_output_dir or (which and list_checkpoints(directory / "checkpoints")):
        return  # what is resumed is compared more closely, with its data too
    name = f"output_dir={settings.run.output_dir!r}"
    if not ((directory / "recipe.toml").exists() or (directory / "metrics.jsonl").exists()):
        found = [f"{entry}/" for entry in REPLACED if (directory / entry).exists()]
        if found:
            raise UserError(
                f"{name} holds {', '.join(found)} but no run, which would replace that: choose another directory, or "
                "replace it with --overwrite_output_dir"
            )
        return
    changed = "; ".join(changed_settings(directory, settings, FREE if which else ()))
    if changed or not which:
        recipe = f"another recipe ({changed})" if changed else "the same recipe"
        resume = "" if which else "resume it with --resume_from_checkpoint latest, "
        raise UserError(
            f"{name} already holds a run of {recipe}{', without a checkpoint' if which else ''}: choose another "
            f"directory, {resume}or replace that run with --overwrite_output_dir"
        )


def is_finished(directory: Path) -> bool:
    """Return whether a run has published its model, and has not been extended since: that changes its recipe."""
    model, recipes = directory / "model", [directory / "recipe.toml", directory / "model" / "recipe.toml"]
    is_extended = all(recipe.exists() for recipe in recipes) and not filecmp.cmp(*recipes, shallow=False)
    return (model / "README.md").exists() and not is_extended


def changed_settings(directory: Path, settings: TrainingSettings, free: Collection[str] = ()) -> list[str]:
    """Say in which settings, but for the free ones, the run in a directory, if it holds one, differs from this one."""
    recipe = directory / "recipe.toml"
    if not recipe.exists():
        return []
    there, here = parse_settings([str(recipe)]).values(), settings.values()
    return [
        f"{name} is {there[name]!r} there, {here[name]!r} here"
        for name in here
        if name not in free and there[name] != here[name]
    ]
