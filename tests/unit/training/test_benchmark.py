import argparse
import json

import pytest
import torch

from training import benchmark
from vaswani.errors import UserError


def test_a_table_is_aligned_and_leaves_out_what_a_row_lacks():
    rows = [{"what": "ours", "rate": 12345.6, "times": 1.5}, {"what": "peer", "rate": 99.0}]
    assert benchmark.table(rows).splitlines() == [
        "what    rate  times",
        "ours  12,346   1.50",
        "peer   99.00",
    ]


def test_without_a_name_the_flags_of_all_benchmarks_have_their_defaults():
    everything = benchmark.parse([])
    for name in benchmark.BENCHMARKS:
        one = vars(benchmark.parse([name]))
        assert one.pop("benchmark") == name
        assert one.items() <= vars(everything).items()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(UserError, match=r"^device='cuda' needs a GPU, and torch finds none: leave it out$"):
        benchmark.main(["train", "--device", "cuda"])


@pytest.mark.parametrize(("arguments", "named"), [(["memory"], "memory"), (["engines"], "engines"), ([], "engines")])
def test_what_computes_on_a_cpu_alone_is_not_called_a_measurement_of_a_gpu(arguments, named, monkeypatch):
    monkeypatch.setattr(benchmark, "check_device", lambda device: None)
    monkeypatch.setattr(benchmark, "describe_hardware", lambda device: pytest.fail("it was about to be measured"))
    with pytest.raises(UserError, match=rf"^device='cuda' must be cpu for {named}: "):
        benchmark.main([*arguments, "--device", "cuda"])


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "BENCHMARKS", dict.fromkeys(benchmark.BENCHMARKS, None))
    monkeypatch.setattr(benchmark, "parse", lambda _: argparse.Namespace(**given, benchmark="memory", device="cpu"))
    for name in ("json", "picture"):
        given = {"json": None, name: str(tmp_path / "none" / "it")}
        with pytest.raises(UserError, match=f"^--{name}='.*' cannot be written: its folder does not exist$"):
            benchmark.main([])


@pytest.mark.parametrize(
    "arguments",
    ["train --rounds 0", "generate --turns 0", "engines --engine_turns 0", "start --starts 0", "plan --pairs 0"],
)
def test_counts_are_at_least_one(arguments, capsys):
    with pytest.raises(SystemExit):
        benchmark.parse(arguments.split())
    assert "'0' must be a whole number of at least 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (99.996, "100.00"), (100.0, "100"), (-1234.5, "-1,234"), (0.0, "0.00"), (8, "8"), ("1,000", "1,000")],
)
def test_large_numbers_have_no_decimals(value, text):
    assert benchmark.cell(value) == text


def test_the_report_is_written_as_json_with_what_was_measured_on(tmp_path, monkeypatch, capsys):
    fakes = {
        name: benchmark.Benchmark(real.add_flags, lambda options, name=name: [{"what": name, "median": 1.0}])
        for name, real in benchmark.BENCHMARKS.items()
    }
    monkeypatch.setattr(benchmark, "BENCHMARKS", fakes)
    monkeypatch.setattr("sys.argv", ["training/benchmark.py", "--json", "my report.json"])
    benchmark.main(["--device=cpu", "--json", str(tmp_path / "report.json")])
    report = json.loads((tmp_path / "report.json").read_text())
    assert list(report) == [
        "command",
        "date",
        "hardware",
        "versions",
        "plan",
        "train",
        "generate",
        "engines",
        "start",
        "memory",
    ]
    assert report["command"] == "training/benchmark.py --json 'my report.json'"
    assert report["train"] == [{"what": "train", "median": 1.0}]
    assert {"torch", "transformers"} <= set(report["versions"])
    assert report["hardware"].endswith(" cores")
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.endswith("1.00")]
    assert lines == [[name, "1.00"] for name in ("plan", "train", "generate", "engines", "start", "memory")]
    benchmark.main(["train", "--device=cpu", "--json", str(tmp_path / "one.json")])
    assert list(json.loads((tmp_path / "one.json").read_text()))[4:] == ["train"]


def test_a_package_that_is_not_installed_is_reported_as_such(monkeypatch, tmp_path):
    monkeypatch.setattr(benchmark, "PACKAGES", ("torch", "no-such-package"))
    monkeypatch.setitem(
        benchmark.BENCHMARKS, "plan", benchmark.BENCHMARKS["plan"]._replace(run=lambda options: [{"what": "x"}])
    )
    benchmark.main(["plan", "--device=cpu", "--json", str(tmp_path / "report.json")])
    assert json.loads((tmp_path / "report.json").read_text())["versions"]["no-such-package"] == "not installed"
