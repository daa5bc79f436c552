"""A run that the end-to-end tests share: number words, translated and reversed, learned in seconds."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from training.settings import ROOT


ENGLISH = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
GERMAN = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"]


def write_corpus(folder: Path) -> None:
    """Write three splits of number words; the German side says them in the opposite order."""
    generator = random.Random(1)
    for split, count in (("train", 5000), ("validation", 60), ("test", 100)):
        with open(folder / f"{split}.tsv", "w", encoding="utf-8") as file:
            for _ in range(count):
                numbers = [generator.randrange(10) for _ in range(generator.randrange(2, 4))]
                english, german = (ENGLISH[n] for n in numbers), (GERMAN[n] for n in reversed(numbers))
                file.write(f"{' '.join(english)}\t{' '.join(german)}\n")


WITH_DROPOUT = "with-dropout"  # the folder of a config beside the other one


def write_config(folder: Path) -> None:
    config = {"model_type": "vaswani", "d_model": 64, "dropout": 0.0}
    for stack in ("encoder", "decoder"):
        config |= {f"{stack}_layers": 2, f"{stack}_attention_heads": 4, f"{stack}_ffn_dim": 128}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / WITH_DROPOUT).mkdir(exist_ok=True)
    (folder / WITH_DROPOUT / "config.json").write_text(json.dumps(config | {"dropout": 0.1}))


def command(launcher: list[str], folder: Path, *flags: str) -> list[str]:
    """Return the command line that trains on the corpus in `folder`."""
    files = [f"--{split}_file={folder / split}.tsv" for split in ("train", "validation", "test")]
    languages = ["--source_lang", "en", "--target_lang", "de", "--config_name", str(folder), "--vocab_size", "290"]
    return [*launcher, str(ROOT / "training" / "run.py"), *files, *languages, *flags]


SECONDS = 300  # the longest wait for a step or for the end of a process, far beyond what one needs on a busy machine
# Threads that wait spin, unless told otherwise, and slow each other down where cores are busy.
ENVIRONMENT = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def launch(
    launcher: list[str], folder: Path, *flags: str, environment: dict[str, str] = ENVIRONMENT
) -> subprocess.CompletedProcess:
    """Train on the corpus in `folder`, as a user would, and return what came of it."""
    line = command(launcher, folder, *flags)
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def end_it_at(step: int, number: int, line: list[str], run: Path) -> tuple[int, str]:
    """Start a run that writes to `run`, send it a signal once it has logged a step; return its status and words."""
    said = run.with_suffix(".out")
    with open(said, "w") as file:
        process = subprocess.Popen(
            line, cwd=run.parent, env=ENVIRONMENT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        deadline = time.monotonic() + SECONDS
        while process.poll() is None and step not in logged_steps(run):
            if time.monotonic() > deadline:
                os.killpg(process.pid, signal.SIGKILL)
                pytest.fail(f"step {step} was not logged within {SECONDS} s: {said.read_text()}")
            time.sleep(0.005)
        assert process.poll() is None, f"it ended before step {step}: {said.read_text()}"
        os.killpg(process.pid, number)
        return process.wait(timeout=SECONDS), said.read_text()


def logged_steps(run: Path) -> list[int]:
    """Return the steps that a run has logged so far."""
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return [json.loads(line)["step"] for line in lines if line.endswith("}")]


def rows(run: Path) -> list[dict]:
    """Return the metrics of a run without what depends on the clock."""
    parsed = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    clock = ("seconds", "target_tokens_per_second")
    return [{name: value for name, value in row.items() if name not in clock} for row in parsed]


PYTHON = [sys.executable]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "1"]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    write_config(folder)
    return folder


@pytest.fixture(scope="session")
def finished_run(corpus, tmp_path_factory) -> Path:
    """Return the output directory of a run that has learned its task."""
    directory = tmp_path_factory.mktemp("runs") / "numbers"
    flags = ["--max_steps=600", "--max_tokens_per_batch=600", "--warmup_steps=100", "--learning_rate_factor=0.2"]
    flags += ["--max_source_length=40", "--max_target_length=40", "--logging_steps=100", "--eval_steps=300"]
    flags += ["--save_steps=50", "--save_total_limit=4", "--average_checkpoints=4", "--space"]
    done = launch(ACCELERATE, corpus, *flags, "--output_dir", str(directory))
    assert done.returncode == 0, done.stdout + done.stderr
    (directory / "stdout").write_text(done.stdout + done.stderr, encoding="utf-8")
    return directory
