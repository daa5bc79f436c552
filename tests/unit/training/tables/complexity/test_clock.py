import gc

import pytest
import torch

from training.tables.complexity import clock
from training.tables.complexity.clock import Bench, LiveBytes
from training.tables.complexity.rows import ROWS, Size


CPU = torch.device("cpu")


def test_only_what_is_alive_at_once_counts():
    with LiveBytes() as counter:
        first = torch.zeros(100)
        second = first + 1
        assert counter.live == 800
        del first
        assert counter.live == 400
        third = second * 2
        del second, third
    assert (counter.live, counter.peak) == (0, 800)


def test_views_and_what_was_there_before_do_not_count():
    present = torch.zeros(100)
    with LiveBytes(present) as counter:
        view = present.view(10, 10).T
        view.add_(1)
        assert counter.peak == 0
        copy = present.clone()
        assert copy[3:].shape == (97,)
        assert counter.peak == 400
    with LiveBytes() as counter:
        assert present.view(10, 10).shape == (10, 10)
    assert counter.peak == 400  # a control: not told that it was there before


def test_what_autograd_keeps_for_the_backward_pass_counts():
    x = torch.ones(100, requires_grad=True)
    with LiveBytes(x) as counter:
        y = x.exp().sin()
        gc.collect()
        assert counter.live == 800
        y = y.detach()
    with torch.no_grad(), LiveBytes(x) as counter:
        y = x.exp().sin()
        assert counter.live == 400


def test_memory_is_the_matrices_that_the_layer_makes():
    n, d = 64, 4
    matrix, states = 2 * n * n * 4, 2 * n * d * 4  # of a batch of 2 in float32
    bench = Bench(ROWS["self-attention"], Size(n, d), 2, CPU)
    # Scores beside scaled ones, or scaled ones beside weights.
    assert 2 * matrix <= bench.peak_bytes(bench.forward) <= 2 * matrix + 3 * states
    # Weights, the gradient by them, and by the scores.
    assert 3 * matrix <= bench.peak_bytes(bench.forward_and_backward) <= 4 * matrix + 6 * states
    blocks = Bench(ROWS["blocks"], Size(n, d, r=8), 2, CPU)
    assert blocks.peak_bytes(blocks.forward) < matrix


def test_a_bench_leaves_no_gradients_and_makes_them():
    bench = Bench(ROWS["projected"], Size(8, 4), 2, CPU)
    made = []
    bench.x.register_hook(made.append)
    bench.forward()
    assert not made
    bench.forward_and_backward()
    assert made[0].abs().sum() > 0
    assert all(tensor.grad is None for tensor in [bench.x, *bench.layer.parameters()])


@pytest.mark.parametrize(("seconds", "times"), [(0.0625, 4), (0.001, 30), (5.0, 3)])
def test_the_time_is_the_median_of_as_many_runs_as_fit(seconds, times, monkeypatch):
    now, runs = [0.0], []

    def work() -> None:
        runs.append(None)
        now[0] += seconds

    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])
    assert Bench(ROWS["self-attention"], Size(2, 2), 1, CPU).seconds(work) == pytest.approx(seconds)
    assert len(runs) == times


def test_a_run_that_something_else_slowed_down_does_not_count(monkeypatch):
    now, durations = [0.0], [1.0, 100.0, 2.0]

    def work() -> None:
        now[0] += durations.pop()

    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])
    assert Bench(ROWS["self-attention"], Size(2, 2), 1, CPU).seconds(work) == 2.0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ROWS)
def test_a_gpu_is_waited_for_and_its_memory_counted(name):
    row = ROWS[name]
    size = row.size(256, 64, 3, 32)
    bench = Bench(row, size, 2, torch.device("cuda"))
    for work in (bench.forward, bench.forward_and_backward):
        assert bench.peak_bytes(work) >= bench.x.nbytes
        assert bench.seconds(work) > 0
