import sys
from pathlib import Path

import pytest

from training import benchmark
from training.benchmarks import gpu, planning, processes
from training.benchmarks import training as training_benchmark
from training.data.batch_plan import plan_epoch
from training.settings import parse_settings
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


def test_ratios_are_those_of_the_medians():
    turns = [{"rate": rate, "peak_bytes": 2e9} for rate in (1.0, 4.0, 2.0)]
    row = training_benchmark.describe_turns("peer", "fp32", turns, ours=6.0, seconds_per_token=0.25)
    assert (row["median"], row["lowest"], row["highest"]) == (2.0, 1.0, 4.0)
    assert (row["ours is times"], row["utilization"], row["peak memory, GB"]) == (3.0, 0.5, 2.0)


def test_a_measurement_that_fails_says_why():
    with pytest.raises(UserError, match=r"a measurement failed: .*No module named 'nowhere'"):
        processes.run_and_watch(["python3", "-c", "import nowhere"])


def test_planning_is_measured_in_a_process_of_its_own():
    (row,) = planning.run(benchmark.parse(["plan", "--pairs", "100000", "--groups", "1"]))
    plan = plan_epoch(*planning.simulate_lengths(100_000), max_tokens=25_000, seed=2017, epoch=0)
    assert row["updates"] == str(len(plan))
    assert 90 < row["real tokens, %"] <= 100


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
    assert settings.torch_compile
    assert settings.config_name == "multi30k-en-de"


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
