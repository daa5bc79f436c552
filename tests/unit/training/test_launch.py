"""The Slurm script, with Slurm and torchrun played by scripts that write down how they were called."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from training.settings import ROOT


STAND_INS = {
    "scontrol": '[ "$1" = show ] && printf "node-a\\nnode-b\\n" || echo "$@" > "$CALLS/scontrol"',
    "srun": 'exec "$@"',
    "torchrun": 'printf "%s\\n" "$@" > "$CALLS/torchrun"; [ -z "$SAVES" ] || mkdir "$SAVES"',
}


@pytest.fixture
def submit(tmp_path, monkeypatch):
    """Return a function that runs the script with flags of run.py, and gives the folder of the calls."""
    for name, body in STAND_INS.items():
        script = tmp_path / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(f"#!/bin/bash\n{body}\n")
        script.chmod(0o755)
    monkeypatch.setenv(
        "PATH", os.pathsep.join(map(str, (tmp_path / "bin", Path(sys.executable).parent, "/usr/bin", "/bin")))
    )
    slurm = {"JOB_NODELIST": "node-[a-b]", "JOB_ID": "17", "NNODES": "2", "GPUS_ON_NODE": "8", "NODEID": "1"}
    for name, value in slurm.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    calls = tmp_path / "calls"
    calls.mkdir()
    monkeypatch.setenv("CALLS", str(calls))
    monkeypatch.setenv("SAVES", "")

    def run(*flags: str) -> Path:
        script = ROOT / "training" / "launch" / "slurm.sh"
        done = subprocess.run(["bash", str(script), *flags], cwd=ROOT, capture_output=True, text=True)
        assert "Error" not in done.stderr, done.stderr
        return calls

    return run


def test_run_is_started_on_each_machine_and_resumes(submit, tmp_path):
    recipe = "training/recipes/base-en-de.toml"
    calls = submit(recipe, "--output_dir", str(tmp_path / "a run"))
    assert (calls / "torchrun").read_text().splitlines() == [
        "--nnodes", "2", "--nproc_per_node", "8", "--node_rank", "1", "--master_addr", "node-a",
        "--master_port", "29500", "training/run.py", recipe, "--output_dir", str(tmp_path / "a run"),
        "--resume_from_checkpoint", "latest",
    ]  # fmt: skip


def published(steps: int, extended_to: int) -> dict[str, str]:
    """Return what tells that a run has published its model, and the recipe that it was resumed with since."""
    given = {"model/README.md": "", "model/recipe.toml": f"max_steps = {steps}"}
    return given | {"recipe.toml": f"max_steps = {extended_to}"}


@pytest.mark.parametrize(
    ("left", "saves", "is_requeued"),
    [
        ({"recipe.toml": "max_steps = 700"}, "step-0000600-interrupted", True),
        ({"recipe.toml": "max_steps = 700"}, "step-0000600", True),  # interrupted where one was due
        (published(400, extended_to=700), "step-0000600-interrupted", True),
        (published(600, extended_to=600), "step-0000600", False),
        ({"recipe.toml": "max_steps = 700"}, "", False),  # it failed at once
    ],
)
@pytest.mark.parametrize("before", ["", "step-0000500-interrupted"])
def test_run_that_came_further_but_is_not_done_is_put_back_into_the_queue(
    submit, tmp_path, monkeypatch, before, left, saves, is_requeued
):
    checkpoints = tmp_path / "a run" / "checkpoints"
    (checkpoints / before).mkdir(parents=True)
    for path, text in left.items():
        (tmp_path / "a run" / path).parent.mkdir(exist_ok=True)
        (tmp_path / "a run" / path).write_text(text)
    monkeypatch.setenv("SAVES", str(checkpoints / saves) if saves else "")
    calls = submit("training/recipes/base-en-de.toml", "--output_dir", str(tmp_path / "a run"))
    said = (calls / "scontrol").read_text().split() if (calls / "scontrol").exists() else []
    assert said == (["requeue", "17"] if is_requeued else [])
