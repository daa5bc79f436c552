"""A function of tensors on a GPU, replayed as a CUDA graph where they have sizes that came before.

An update of the base model is some 700 operations, and Python takes twice as long to start them as a GPU to do them. A
graph starts all at once. It is for some sizes, and reads and writes the same memory whenever it is replayed, which the
graphs for all sizes share.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import torch

from vaswani.errors import first_line


Tensors = Sequence[torch.Tensor]

# Sizes that have a graph; what has further ones is computed without. `packing.pack` leaves 25 to most updates.
MOST_GRAPHS = 64


class Recording(NamedTuple):
    """What replays a graph, and the tensors that it reads."""

    replay: Callable[[], object]
    inputs: Tensors


class Recorder:
    """A function that is computed as it is for the first tensors of some sizes, and then recorded.

    The first time has its kernels compiled and loaded, which cannot be recorded. Random numbers are new at each
    replay, and follow from the seed as without a graph.

    Parameters
    ----------
    function : callable
        Of tensors. Whatever their sizes, its results have the same sizes, and a type in common.
    say : callable
        Is given a sentence if nothing can be recorded: for want of memory, say.
    """

    def __init__(self, function: Callable[..., Tensors], say: Callable[[str], object]):
        self.function, self.say = function, say
        self.records = True
        self.forget()

    def forget(self) -> None:
        """Drop all graphs, as for when something else that the function reads is no longer where it was."""
        self.recordings: dict[Hashable, Recording | None] = {}  # by sizes; None after the first time
        self.results: Tensors = ()
        self.pool: tuple[int, int] | None = None

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        """Return the results, which hold until the next call."""
        if self.records:
            try:
                return self._with_graphs(inputs)
            except RuntimeError as error:
                self.say(f"Nothing is recorded as CUDA graphs any more, which is slower: {first_line(error)}")
            self.records = False
            self.forget()
            recover()
        return self.function(*inputs)

    def _with_graphs(self, inputs: Tensors) -> Tensors:
        sizes = tuple(each.shape for each in inputs)
        if sizes not in self.recordings:
            if len(self.recordings) < MOST_GRAPHS:
                self.recordings[sizes] = None
            results = self.function(*inputs)
            self.results = self.results or [torch.empty_like(each) for each in results]
            return results
        recording = self.recordings[sizes]
        if recording is None:
            recording = self.recordings[sizes] = self._record(inputs)
        for kept, new in zip(recording.inputs, inputs, strict=True):
            kept.copy_(new)
        recording.replay()
        return self.results

    def _record(self, inputs: Tensors) -> Recording:
        kept = [each.clone() for each in inputs]
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        return Recording(record(lambda: torch._foreach_copy_(self.results, self.function(*kept)), self.pool), kept)


def record(operations: Callable[[], object], pool: tuple[int, int]) -> Callable[[], object]:
    """Record operations on a GPU, whose memory is of the pool, without doing them; return what does them."""
    graph = torch.cuda.CUDAGraph()
    # Other threads, which read the next batches, use the device meanwhile.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        operations()
    return graph.replay


def recover() -> None:
    """Free memory, and let random numbers be drawn again, which a recording that failed forbids for good."""
    torch.cuda.empty_cache()
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    fresh = torch.Generator(generator.device).manual_seed(generator.initial_seed())
    generator.graphsafe_set_state(fresh.graphsafe_get_state())
