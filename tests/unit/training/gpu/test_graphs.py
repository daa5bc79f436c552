"""What is recorded, and when. CUDA's own graphs need a GPU: here a function that is called again stands in for one."""

import pytest
import torch

from training.gpu import graphs
from training.gpu.graphs import Recorder


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture
def recorded(monkeypatch):
    """Return the pools of what is recorded."""
    pools = []
    monkeypatch.setattr(graphs, "record", lambda operations, pool: pools.append(pool) or operations)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (1, len(pools)))
    monkeypatch.setattr(graphs, "recover", lambda: None)
    return pools


class Watched:
    """A function of two tensors that knows what it was given."""

    def __init__(self):
        self.given = []

    def __call__(self, one, other):
        self.given.append((one, other))
        return one.sum(), other.sum()


def tensors(*sizes):
    return [torch.rand(size) for size in sizes]


def test_a_size_is_recorded_the_second_time_and_replayed_from_then_on(recorded):
    function = Watched()
    recorder = Recorder(function, pytest.fail)
    for number in range(4):
        inputs = tensors(3, 4)
        assert [each.item() for each in recorder(*inputs)] == [each.sum().item() for each in inputs]
        assert len(recorded) == int(number > 0)
        assert (function.given[-1][0] is inputs[0]) is (number == 0)  # a replay reads its own tensors
    assert function.given[-1][0] is function.given[-2][0]


def test_each_size_is_recorded_into_the_same_memory(recorded):
    recorder = Recorder(Watched(), pytest.fail)
    for sizes in ((3, 4), (3, 5)):
        recorder(*tensors(*sizes))
    results = [recorder(*tensors(*sizes)) for sizes in ((3, 4), (3, 5))]
    assert recorded == [(1, 0)] * 2
    assert results[0] is results[1]


def test_what_is_forgotten_is_recorded_anew(recorded):
    recorder = Recorder(Watched(), pytest.fail)
    for _ in range(3):
        recorder(*tensors(3, 4))
    recorder.forget()
    for number in range(3):
        recorder(*tensors(3, 4))
        assert len(recorded) == 1 + int(number > 0)


def test_many_sizes_are_not_recorded(recorded, monkeypatch):
    monkeypatch.setattr(graphs, "MOST_GRAPHS", 2)
    recorder = Recorder(Watched(), pytest.fail)
    for _ in range(3):
        for size in (1, 2, 3):
            inputs = tensors(size, 4)
            assert recorder(*inputs)[0] == inputs[0].sum()
    assert len(recorded) == 2


def test_what_cannot_be_recorded_is_computed_and_said_once(recorded, monkeypatch):
    def fail(*_):
        raise RuntimeError("no memory\nat all")

    said = []
    recorder = Recorder(Watched(), said.append)
    monkeypatch.setattr(graphs, "record", fail)
    for _ in range(4):
        inputs = tensors(3, 4)
        assert recorder(*inputs)[0] == inputs[0].sum()
    assert said == ["Nothing is recorded as CUDA graphs any more, which is slower: no memory"]


def test_an_error_of_the_function_stays_one(recorded):
    def fail(*_):
        raise RuntimeError("wrong")

    with pytest.raises(RuntimeError, match="wrong"):
        Recorder(fail, lambda sentence: None)(*tensors(3, 4))


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("fault", [torch.cuda.synchronize, lambda: torch.empty(2**50, device="cuda")])
def test_a_gpu_goes_on_after_a_recording_that_failed(fault):
    """A synchronization spoils a recording, and so does want of memory."""

    def function(states):
        if torch.cuda.is_current_stream_capturing():
            fault()
        return [states + torch.randint(1000, (3,), device="cuda")]

    said = []
    recorder = Recorder(function, said.append)
    for number in range(4):
        torch.manual_seed(number)
        [found] = recorder(torch.zeros(3, device="cuda"))
        torch.manual_seed(number)
        assert found.tolist() == torch.randint(1000, (3,), device="cuda").tolist()
    assert len(said) == 1
