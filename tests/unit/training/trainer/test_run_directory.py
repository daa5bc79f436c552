"""Who may write to an output directory: one process, for as long as it lives."""

import errno
import fcntl
import multiprocessing
import os
import signal
import socket
import time
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from accelerate import Accelerator

from training import table3
from training.recipe import parse_settings
from training.trainer import run_directory
from training.trainer.run_directory import LOCK, OWNER, check_output_dir, claim_output_dir, is_finished, own
from vaswani.errors import UserError


FORK = multiprocessing.get_context("fork")  # another process at once, without importing everything again


@pytest.fixture(autouse=True)
def no_patience(monkeypatch):
    monkeypatch.setattr(run_directory, "PATIENCE", 0.0)


def own_until_killed(directory: Path, connection: Connection) -> None:
    """Own a directory and have a child, which would keep any lock that it inherited; send what came of it."""
    try:
        with own(directory):
            child = os.fork()
            if child:
                connection.send(child)
            time.sleep(60)
    except UserError as error:
        connection.send(str(error))


@contextmanager
def owned_by_another(directory: Path):
    """Let another process own a directory; yield it and its child's id."""
    here, there = FORK.Pipe()
    process = FORK.Process(target=own_until_killed, args=(directory, there))
    process.start()
    child = here.recv()
    try:
        yield process, child
    finally:
        os.kill(child, signal.SIGKILL)
        process.kill()
        process.join()


def test_a_second_process_is_refused_with_the_name_of_the_first_until_that_is_killed(tmp_path, monkeypatch):
    with owned_by_another(tmp_path) as (process, child):
        name = rf"process {process.pid} on host {socket.gethostname()}, since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d"
        with (
            pytest.raises(UserError, match=rf"^output_dir='{tmp_path}' is in use by {name} .*: wait until"),
            own(tmp_path),
        ):
            pytest.fail("both own it")
        assert (tmp_path / OWNER).exists()
        process.kill()
        process.join()
        os.kill(child, 0)  # its child is still there
        monkeypatch.setattr(run_directory, "PATIENCE", 5.0)
        with own(tmp_path):
            assert (tmp_path / OWNER).read_text().startswith(f"process {os.getpid()} ")


def test_it_is_given_back_when_all_is_done_and_after_an_error(tmp_path):
    for _ in range(2):
        with pytest.raises(RuntimeError), own(tmp_path):
            raise RuntimeError
        assert not (tmp_path / OWNER).exists()


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_a_file_system_without_locks_gets_a_file_and_whoever_is_refused_learns_of_it(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    here, there = FORK.Pipe()
    with own(tmp_path):
        other = FORK.Process(target=own_until_killed, args=(tmp_path, there))
        other.start()
        refusal = here.recv()
        other.join()
    assert f"is in use by process {os.getpid()} on host" in refusal
    assert f"(if that was killed, remove {tmp_path / LOCK})" in refusal
    assert not (tmp_path / LOCK).exists()


def test_a_file_system_that_cannot_lock_is_refused(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UserError, match=r"output_dir='.*' cannot be locked: .*No locks available"), own(tmp_path):
        pass


def test_a_run_is_refused_before_it_changes_anything(tmp_path, capsys):
    flags = ["--dataset_name=x", "--source_lang=en", "--target_lang=de", f"--output_dir={tmp_path}"]
    accelerator = Accelerator(cpu=True)
    (tmp_path / "recipe.toml").write_text('dataset_name = "y"\nsource_lang = "en"\ntarget_lang = "de"\n')
    with owned_by_another(tmp_path):
        for start in (["--overwrite_output_dir"], ["--resume_from_checkpoint=latest"], []):
            with pytest.raises(SystemExit), claim_output_dir(parse_settings([*flags, *start]), accelerator):
                pytest.fail("it was not refused")
            said = capsys.readouterr().err
            assert said.startswith(f"error: output_dir='{tmp_path}' is in use by process ")
            assert said.count("\n") == 1
    with pytest.raises(SystemExit), claim_output_dir(parse_settings(flags), accelerator):
        pytest.fail("it was not refused")
    assert "already holds a run of another recipe" in capsys.readouterr().err


def refusal(tmp_path, *flags: str) -> str | None:
    text = ["--dataset_name=x", "--source_lang=en", "--target_lang=de", f"--output_dir={tmp_path}"]
    try:
        check_output_dir(parse_settings([*text, *flags]))
    except UserError as error:
        return str(error)
    return None


def test_folders_that_are_of_no_run_are_not_replaced(tmp_path):
    assert refusal(tmp_path) is None
    (tmp_path / "src").mkdir()
    assert refusal(tmp_path) is None
    (tmp_path / "model").mkdir()
    (tmp_path / "outputs").mkdir()
    for start in ([], ["--resume_from_checkpoint=latest"]):
        assert refusal(tmp_path, *start).startswith(f"output_dir='{tmp_path}' holds model/, outputs/ but no run")
    assert refusal(tmp_path, "--overwrite_output_dir") is None
    (tmp_path / "checkpoints" / "step-0000001").mkdir(parents=True)  # brought here to be resumed
    assert refusal(tmp_path, "--resume_from_checkpoint=latest") is None
    assert "checkpoints/, model/, outputs/" in refusal(tmp_path)


def test_without_a_checkpoint_only_the_same_run_begins_anew(tmp_path):
    (tmp_path / "recipe.toml").write_text('dataset_name = "x"\nsource_lang = "en"\ntarget_lang = "de"\nseed = 3\n')
    latest = "--resume_from_checkpoint=latest"
    assert refusal(tmp_path, latest, "--seed=3", "--max_steps=9") is None
    said = refusal(tmp_path, latest, "--seed=4")
    assert "holds a run of another recipe (seed is 3 there, 4 here), without a checkpoint: choose another" in said
    assert "a run of another recipe (max_steps is " in refusal(tmp_path, "--seed=3", "--max_steps=9")
    assert refusal(tmp_path, "--seed=3").endswith(
        "directory, resume it with --resume_from_checkpoint latest, or replace that run with --overwrite_output_dir"
    )


def test_a_checkpoint_that_the_run_does_not_have_is_refused_before_anything_begins(tmp_path):
    (tmp_path / "checkpoints" / "step-0000001").mkdir(parents=True)
    assert refusal(tmp_path, f"--resume_from_checkpoint={tmp_path}/checkpoints/step-0000001") is None
    said = refusal(tmp_path, f"--resume_from_checkpoint={tmp_path}/checkpoints/step-0000002")
    assert said.endswith("it must be 'latest' or a checkpoint in " + f"{tmp_path}/checkpoints (step-0000001)")


@pytest.mark.parametrize("missing", [["recipe.toml"], ["model/recipe.toml"], ["recipe.toml", "model/recipe.toml"]])
def test_a_model_without_its_recipe_is_that_of_a_finished_run(missing, tmp_path):
    (tmp_path / "model").mkdir()
    for name in {"recipe.toml", "model/recipe.toml", "model/README.md"} - set(missing):
        (tmp_path / name).touch()
    assert is_finished(tmp_path)
    (tmp_path / "model" / "README.md").unlink()
    assert not is_finished(tmp_path)


def test_a_sweep_owns_its_directory(tmp_path):
    flags = ["--dataset_name=grammar", "--source_lang=en", "--target_lang=de"]
    with owned_by_another(tmp_path), pytest.raises(UserError, match="is in use by"):
        table3.main(["--rows=base", *flags, f"--output_dir={tmp_path}"])
    assert sorted(path.name for path in tmp_path.iterdir()) == [LOCK, OWNER]
