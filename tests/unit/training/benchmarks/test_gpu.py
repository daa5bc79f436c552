import json
import subprocess
import sys
import time
from pathlib import Path

from training import benchmark
from training.benchmarks import gpu
from training.recipe import parse_settings
from training.settings import ROOT


def test_what_runs_on_a_gpu_is_understood_by_what_it_calls(tmp_path):
    parts = gpu.commands(tmp_path, Path("data"))
    assert list(parts) == list(gpu.PARTS)
    assert sum(gpu.PARTS.values()) < 10 * 60
    for name in ("base", "generate"):
        assert benchmark.parse(parts[name][2:]).json == str(tmp_path / f"{name}.json")
    for name, config in (("wmt14", "base-en-de"), ("big", "big-en-de")):
        assert parts[name][1:4] == ["-c", gpu.MEASURED_RUN, "training/run.py"]
        settings = parse_settings(parts[name][4:])
        assert settings.model.config_name == config
        assert settings.run.output_dir == str(tmp_path / name)


def test_the_gpus_parts_run_on_the_gpu_and_take_the_papers_batch(tmp_path):
    parts = gpu.commands(tmp_path, Path("data"))
    options = benchmark.parse(parts["base"][2:])
    assert (options.benchmark, options.device, options.rounds, options.config_name) == (
        "train",
        "cuda",
        1,
        "base-en-de",
    )
    assert (options.dataset_name, options.dataset_config_name, options.sentences) == ("data", "de-en", None)
    options = benchmark.parse(parts["generate"][2:])
    assert (options.benchmark, options.device) == ("generate", "cuda")
    for name in ("wmt14", "big"):
        settings = parse_settings(parts[name][4:])
        assert (settings.data.dataset_name, settings.data.dataset_config_name) == ("data", "de-en")
        assert settings.run.overwrite_output_dir
        optimization = settings.optimization
        assert (optimization.max_tokens_per_batch, optimization.max_tokens_per_device) == (25_000, 32_768)
    assert all((ROOT / path).exists() for path in ("training/benchmark.py", "training/run.py"))


def test_all_files_with_tests_for_a_gpu_are_run_there(tmp_path):
    marked = {path for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu\n" in path.read_text(encoding="utf-8")}
    assert {ROOT / path for path in gpu.TESTS} == marked
    assert gpu.commands(tmp_path, Path("data"))["tests"][-len(gpu.TESTS) :] == gpu.TESTS


def test_only_the_parts_that_are_named_are_run(tmp_path, monkeypatch):
    parts = {name: [sys.executable, "-c", "print('fine')"] for name in gpu.PARTS}
    monkeypatch.setattr(gpu, "commands", lambda folder, data: parts)
    monkeypatch.setattr(sys, "argv", ["gpu.py", f"--output_dir={tmp_path}", "--parts", "big", "tests"])
    assert gpu.main() == 0
    assert list(json.loads((tmp_path / "gpu.json").read_text())["parts"]) == ["tests", "big"]


def test_a_part_that_fails_has_no_results_of_an_earlier_time(tmp_path, monkeypatch):
    parts = {name: [sys.executable, "-c", "raise SystemExit(3)"] for name in ("base", "wmt14")}
    monkeypatch.setattr(gpu, "commands", lambda folder, data: parts)
    monkeypatch.setattr(sys, "argv", ["gpu.py", f"--output_dir={tmp_path}"])
    (tmp_path / "base.json").write_text('{"train": []}')
    (tmp_path / "wmt14").mkdir()
    (tmp_path / "wmt14" / "metrics.jsonl").write_text('{"step": 1}\n')
    assert gpu.main() == 1
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert {name: part["results"] for name, part in report["parts"].items()} == {"base": None, "wmt14": None}


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


def test_what_a_part_has_started_ends_with_it(tmp_path):
    lasting = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    starter = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {lasting!r}])"
    with open(tmp_path / "log", "w") as log:
        late = gpu.run_part([sys.executable, "-c", starter], 5, log)
    assert late["status"] == -9
    started = int((tmp_path / "log").read_text().splitlines()[-1])
    assert has_ended(started)


def has_ended(process):
    """Tell whether a process is gone, or a zombie that nobody waits for."""
    stat = Path(f"/proc/{process}/stat")
    for _ in range(100):
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.1)
    return False


def test_a_run_is_reported_by_its_metrics_without_a_line_that_was_cut_off(tmp_path):
    (tmp_path / "wmt14").mkdir()
    (tmp_path / "wmt14" / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"step": 3, "lo')
    assert gpu.results(tmp_path, "wmt14") == [{"step": 1}, {"step": 2}]


def test_the_report_says_which_part_failed(tmp_path, monkeypatch):
    parts = {"tests": [sys.executable, "-c", "print('fine')"], "base": [sys.executable, "-c", "raise SystemExit(3)"]}
    monkeypatch.setattr(gpu, "commands", lambda folder, data: parts)
    monkeypatch.setattr(sys, "argv", ["gpu.py", f"--output_dir={tmp_path}"])
    assert gpu.main() == 1
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert {name: part["status"] for name, part in report["parts"].items()} == {"tests": 0, "base": 3}
    log = (tmp_path / "gpu.log").read_text()
    assert log.startswith("==== training/benchmarks/gpu.py\n")
    assert "==== training/recipes/base-en-de.toml" in log
