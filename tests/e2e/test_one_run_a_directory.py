"""Runs that are started in the directory of one that lives, and one that goes on when that has been killed."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tiny_run import ENVIRONMENT, PYTHON, TORCHRUN, command, launch, logged_steps


FLAGS = ["--max_tokens_per_batch=600", "--max_source_length=40", "--max_target_length=40", "--max_eval_samples=8"]
FLAGS += ["--logging_steps=5", "--save_steps=5", "--save_total_limit=1", "--dataloader_num_workers=2"]


def start(launcher: list[str], corpus: Path, *flags: str) -> subprocess.Popen:
    line = command(launcher, corpus, *FLAGS, *flags)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(line, cwd=corpus, env=ENVIRONMENT, text=True, start_new_session=True, **pipes)


def last_step(run: Path) -> int:
    return max(logged_steps(run), default=0)


@pytest.fixture
def living(corpus, tmp_path):
    """Start a run that has loader processes and would take hours, and yield it once it trains."""
    process = start(PYTHON, corpus, "--max_steps=1000000", "--output_dir", str(tmp_path / "run"))
    deadline = time.monotonic() + 300
    while process.poll() is None and last_step(tmp_path / "run") < 10 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert process.poll() is None, process.stdout.read()
    assert last_step(tmp_path / "run") >= 10, "it made no ten updates in five minutes"
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_one_run_owns_a_directory_until_it_is_killed(living, corpus, tmp_path):
    run = ["--max_steps=1000000", "--output_dir", str(tmp_path / "run")]
    resume = [*run, "--resume_from_checkpoint", "latest"]
    before = last_step(tmp_path / "run")
    others = [start(PYTHON, corpus, *run, "--overwrite_output_dir"), start(TORCHRUN, corpus, *resume)]
    for other in others:
        said, _ = other.communicate(timeout=300)
        assert other.returncode != 0
        assert said.count("error: output_dir=") == 1, said
        assert f"is in use by process {living.pid} on host {os.uname().nodename}, since 20" in said
        assert "gloo" not in said.lower()
    assert living.poll() is None
    assert last_step(tmp_path / "run") > before
    recipe = (tmp_path / "run" / "recipe.toml").read_text()
    assert "processes = 1" in recipe

    # Its loaders are stopped, so that they outlive it as long as they please.
    loaders = Path(f"/proc/{living.pid}/task/{living.pid}/children").read_text().split()
    assert len(loaders) >= 2
    for loader in loaders:
        os.kill(int(loader), signal.SIGSTOP)
    living.kill()
    step = last_step(tmp_path / "run")
    done = launch(PYTHON, corpus, *FLAGS, *resume, "--max_time=0.001")
    assert done.returncode == 0, done.stderr
    assert "Resumed from" in done.stdout + done.stderr
    assert last_step(tmp_path / "run") >= step - 5
