"""Everything that only a GPU can show, in one command of less than ten minutes: `make gpu`.

It needs no set-up and no network, only the machine's own Python with torch and this project's training packages. It
leaves `gpu.json` and `gpu.log` in the output directory. The log begins with this file and the recipe, so that it shows
what was run.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "training" / "recipes" / "base-en-de.toml"
# The parts, and the most seconds that each may take: 590 together.
PARTS = {"tests": 70, "base": 220, "wmt14": 165, "big": 60, "generate": 75}

# The files with tests that need a GPU. Others may need packages that such a machine does not have.
TESTS = [
    f"tests/unit/{name}.py"
    for name in (
        "training/objective/test_loss",
        "training/gpu/test_graphs",
        "training/gpu/test_kernels",
        "training/gpu/test_objective",
        "training/gpu/test_recorded",
        "training/trainer/test_results",
        "training/tables/complexity/test_clock",
        "vaswani/models/test_graphs_vaswani",
    )
]
# Runs run.py as a user does, and prints at the end how much memory of the GPU it held.
MEASURED_RUN = (
    "import runpy, sys, torch; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__'); "
    "print(torch.cuda.max_memory_allocated())"
)


def commands(folder: Path, data: Path) -> dict[str, list[str]]:
    """Return the command line of every part."""
    measure = [sys.executable, "training/benchmark.py"]
    benchmark = [*measure, "train", "--device", "cuda", "--dataset_name", str(data), "--dataset_config_name", "de-en"]
    benchmark += ["--config_name", "base-en-de", "--rounds", "1", "--tokens", "1000000", "--seconds", "20"]
    benchmark += ["--json", str(folder / "base.json")]
    training = [sys.executable, "-c", MEASURED_RUN, "training/run.py"]
    common = ["--dataset_name", str(data), "--max_tokens_per_device", "32768", "--overwrite_output_dir"]
    common += ["--eval_steps", "0"]
    # So short a run reaches the paper's highest learning rate after 1,200 updates instead of 4,000.
    base = [*training, str(RECIPE), *common, "--max_steps", "2400", "--warmup_steps", "1200"]
    base += ["--learning_rate_factor=0.55", "--save_steps", "240", "--logging_steps", "80"]
    big = [*training, str(RECIPE.with_name("big-en-de.toml")), *common, "--max_steps", "200", "--save_steps", "0"]
    big += ["--average_checkpoints", "1", "--logging_steps", "20", "--max_eval_samples", "2"]
    return {
        "tests": [sys.executable, "-m", "pytest", "-q", "-m", "gpu", *TESTS],
        "base": benchmark,
        "wmt14": [*base, "--output_dir", str(folder / "wmt14")],
        "big": [*big, "--output_dir", str(folder / "big")],
        "generate": [*measure, "generate", "--device", "cuda", "--turns=3", "--json", str(folder / "generate.json")],
    }


def run_part(command: list[str], seconds: float, log: Any) -> dict[str, Any]:
    """Run one part, with its output in the log; return how it ended."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    started = time.monotonic()
    log.write(f"\n$ {' '.join(command)}\n")
    log.flush()
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    with suppress(subprocess.TimeoutExpired), ending_with_its_own(process):
        process.wait(seconds)
    status = process.wait()
    return {"command": " ".join(command), "status": status, "seconds": round(time.monotonic() - started, 1)}


@contextmanager
def ending_with_its_own(process: subprocess.Popen) -> Generator[None, None, None]:
    """Kill a process at the end of the block, with those that it started: they would slow the next part down."""
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def results(folder: Path, name: str) -> Any:
    """Return the measurements of a part: a benchmark's JSON, or the rows of a run's metrics; None if it left none."""
    metrics = folder / name / "metrics.jsonl"
    if metrics.exists():
        lines = metrics.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]  # the last is cut off if the part was ended
    report = folder / f"{name}.json"
    return json.loads(report.read_text(encoding="utf-8")) if report.exists() else None


def main() -> int:
    """Run all parts; return 0 if all succeeded, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, default=ROOT / "runs" / "gpu")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "wmt14")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all, in this order")
    options = parser.parse_args()
    folder = options.output_dir.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "parts": {}}
    with open(folder / "gpu.log", "w", encoding="utf-8") as log:
        for source in (Path(__file__), RECIPE):
            log.write(f"==== {source.relative_to(ROOT)}\n{source.read_text(encoding='utf-8')}\n")
        for name, command in commands(folder, options.data).items():
            if name not in options.parts:
                continue
            print(f"{name}: at most {PARTS[name]} s ...", flush=True)
            for old in (folder / name / "metrics.jsonl", folder / f"{name}.json"):
                old.unlink(missing_ok=True)  # a part that fails would be reported by them
            part = run_part(command, PARTS[name], log)
            report["parts"][name] = part | {"results": results(folder, name)}
            print(f"{name}: {'done' if part['status'] == 0 else 'FAILED'} after {part['seconds']} s", flush=True)
            (folder / "gpu.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    print(f"Everything is in {folder / 'gpu.json'} and {folder / 'gpu.log'}")
    return int(any(part["status"] for part in report["parts"].values()))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # as Ctrl-C, it ends the part too
    sys.exit(main())
