import json
import subprocess
import sys
from pathlib import Path

from training import benchmark
from training.benchmarks import gpu
from training.recipe import parse_settings
from training.settings import ROOT


def test_what_runs_on_a_gpu_is_understood_by_what_it_calls(tmp_path):
    parts = gpu.commands(tmp_path, Path("data"))
    assert list(parts) == list(gpu.PARTS)
    assert sum(gpu.PARTS.values()) < 9 * 60
    for name in ("base", "big"):
        options = benchmark.parse(parts[name][2:])
        assert options.json == str(tmp_path / f"{name}.json")
        assert options.config_name == f"{name}-en-de"
    assert benchmark.parse(parts["generate"][2:]).json == str(tmp_path / "generate.json")
    settings = parse_settings(parts["multi30k"][2:])
    assert settings.run.torch_compile
    assert settings.model.config_name == "multi30k-en-de"


def test_the_gpus_parts_run_on_the_gpu_and_compile(tmp_path):
    parts = gpu.commands(tmp_path, Path("data"))
    for name in ("base", "big"):
        options = benchmark.parse(parts[name][2:])
        assert (options.benchmark, options.device, options.torch_compile, options.rounds) == (
            "train",
            "cuda",
            "true",
            1,
        )
    options = benchmark.parse(parts["generate"][2:])
    assert (options.benchmark, options.device) == ("generate", "cuda")
    settings = parse_settings(parts["multi30k"][2:])
    assert (settings.data.dataset_name, settings.run.output_dir) == ("data", str(tmp_path / "multi30k"))
    assert (
        settings.run.attn_implementation,
        settings.optimization.max_tokens_per_batch,
        settings.optimization.max_steps,
    ) == ("sdpa", 8000, 2000)
    assert settings.run.overwrite_output_dir
    assert all((ROOT / command[1]).exists() for name, command in parts.items() if name != "tests")


def test_it_starts_with_the_standard_library_alone():
    command = [sys.executable, "-I", "-S", str(ROOT / "training" / "benchmarks" / "gpu.py"), "--help"]
    assert "--output_dir" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_part_that_takes_too_long_is_ended_and_what_it_said_is_kept(tmp_path):
    with open(tmp_path / "log", "w") as log:
        done = gpu.run_part([sys.executable, "-c", "print('whole')"], 60, log)
        late = gpu.run_part([sys.executable, "-c", "import time; print('half', flush=True); time.sleep(60)"], 3, log)
    assert (done["status"], late["status"]) == (0, -9)
    assert late["seconds"] < 30
    said = (tmp_path / "log").read_text().splitlines()
    assert {"whole", "half"} <= set(said)
    (tmp_path / "base.json").write_text('{"train": []}')
    assert gpu.results(tmp_path, "base") == {"train": []}
    assert gpu.results(tmp_path, "big") is None


def test_a_run_is_reported_by_its_metrics(tmp_path):
    (tmp_path / "multi30k").mkdir()
    (tmp_path / "multi30k" / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    assert gpu.results(tmp_path, "multi30k") == [{"step": 1}, {"step": 2}]


def test_the_report_says_which_part_failed(tmp_path, monkeypatch):
    parts = {"tests": [sys.executable, "-c", "print('fine')"], "base": [sys.executable, "-c", "raise SystemExit(3)"]}
    monkeypatch.setattr(gpu, "commands", lambda folder, data: parts)
    monkeypatch.setattr(sys, "argv", ["gpu.py", f"--output_dir={tmp_path}"])
    assert gpu.main() == 1
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert {name: part["status"] for name, part in report["parts"].items()} == {"tests": 0, "base": 3}
    log = (tmp_path / "gpu.log").read_text()
    assert log.startswith("==== training/benchmarks/gpu.py\n")
    assert "==== training/recipes/multi30k-en-de.toml" in log
