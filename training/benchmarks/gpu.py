"""Everything that only a GPU can show, in one command of less than nine minutes: `make gpu`.

It needs no set-up and no network, only the machine's own Python with torch and this project's training packages. It
leaves `gpu.json` and `gpu.log` in the output directory. The log begins with this file and the recipe, so that it shows
what was run.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "training" / "recipes" / "multi30k-en-de.toml"
# The parts, and the most seconds that each may take: 520 together.
PARTS = {"tests": 60, "base": 110, "big": 110, "generate": 50, "multi30k": 190}


def commands(folder: Path, data: Path) -> dict[str, list[str]]:
    """Return the command line of every part."""
    measure = [sys.executable, "training/benchmark.py"]
    benchmark = [*measure, "train", "--device", "cuda", "--torch_compile", "true", "--rounds", "1"]
    training = [sys.executable, "training/run.py", str(RECIPE), "--dataset_name", str(data), "--torch_compile", "true"]
    training += ["--attn_implementation", "sdpa", "--max_tokens_per_batch", "8000", "--max_steps", "2000"]
    training += ["--warmup_steps", "1000", "--eval_steps", "1000", "--overwrite_output_dir", "--save_steps", "100"]
    return {
        "tests": [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/unit", "tests/parity"],
        "base": [*benchmark, "--config_name", "base-en-de", "--json", str(folder / "base.json")],
        "big": [*benchmark, "--config_name", "big-en-de", "--json", str(folder / "big.json")],
        "generate": [*measure, "generate", "--device", "cuda", "--json", str(folder / "generate.json")],
        "multi30k": [*training, "--output_dir", str(folder / "multi30k")],
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
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        status = process.wait()
    return {"command": " ".join(command), "status": status, "seconds": round(time.monotonic() - started, 1)}


def results(folder: Path, name: str) -> Any:
    """Return the measurements of a part: a benchmark's JSON, or the rows of a run's metrics; None if it left none."""
    metrics = folder / name / "metrics.jsonl"
    if metrics.exists():
        return [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    report = folder / f"{name}.json"
    return json.loads(report.read_text(encoding="utf-8")) if report.exists() else None


def main() -> int:
    """Run all parts; return 0 if all succeeded, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, default=ROOT / "runs" / "gpu")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "multi30k")
    options = parser.parse_args()
    folder = options.output_dir.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "parts": {}}
    with open(folder / "gpu.log", "w", encoding="utf-8") as log:
        for source in (Path(__file__), RECIPE):
            log.write(f"==== {source.relative_to(ROOT)}\n{source.read_text(encoding='utf-8')}\n")
        for name, command in commands(folder, options.data).items():
            print(f"{name}: at most {PARTS[name]} s ...", flush=True)
            part = run_part(command, PARTS[name], log)
            report["parts"][name] = part | {"results": results(folder, name)}
            print(f"{name}: {'done' if part['status'] == 0 else 'FAILED'} after {part['seconds']} s", flush=True)
            (folder / "gpu.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    print(f"Everything is in {folder / 'gpu.json'} and {folder / 'gpu.log'}")
    return int(any(part["status"] for part in report["parts"].values()))


if __name__ == "__main__":
    sys.exit(main())
