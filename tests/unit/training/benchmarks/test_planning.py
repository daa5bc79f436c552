import numpy as np

from training import benchmark
from training.benchmarks import planning
from training.data.batch_plan import plan_epoch


def test_planning_is_measured_in_a_process_of_its_own():
    (row,) = planning.run(benchmark.parse(["plan", "--pairs", "100000", "--groups", "8"]))
    plan = plan_epoch(*planning.simulate_lengths(100_000), max_tokens=25_000, seed=2017, epoch=0, length_groups=8)
    assert (row["pairs"], row["length_groups"], row["updates"]) == ("100,000", 8, str(len(plan)))
    assert 90 < row["real tokens, %"] <= 100
    assert 0.02 < row["peak memory, GB"] < 20


def test_every_size_is_planned_in_every_number_of_groups(monkeypatch):
    asked = []

    def pretend(command):
        asked.append(command[-2:])
        return '{"pairs": "1", "length_groups": 1, "updates": "1", "seconds": 1.0, "real_tokens": 1.0}', 3e9

    monkeypatch.setattr(planning, "run_and_watch", pretend)
    rows = planning.run(benchmark.parse(["plan", "--pairs", "10", "20", "--groups", "1", "8"]))
    assert asked == [["10", "1"], ["10", "8"], ["20", "1"], ["20", "8"]]
    assert {row["peak memory, GB"] for row in rows} == {3.0}


def test_simulated_lengths_are_spread_as_those_of_wmt():
    source, target = planning.simulate_lengths(50_000)
    for lengths in (source, target):
        assert lengths.min() >= 2
        assert lengths.max() <= 256
        assert 26 < lengths.mean() < 32
    assert 0.9 < np.corrcoef(np.log(source), np.log(target))[0, 1] < 1
