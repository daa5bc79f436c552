"""What depends on the machine: how long a layer takes, and how much memory it needs."""

import statistics
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from training.tables.complexity.rows import Row, Size


FEWEST, MOST, SECONDS = 3, 30, 0.2


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that are alive at once, without those that were there before.

    It sees what each of torch's operations returns and when that is freed; not what an operation needs meanwhile.
    """

    def __init__(self, *present: torch.Tensor) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.seen = {tensor.untyped_storage()._cdata: None for tensor in present}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.note(leaf.untyped_storage())
        return result

    def note(self, storage: torch.UntypedStorage) -> None:
        """Count a storage until it is freed."""
        key, size = storage._cdata, storage.nbytes()
        if key in self.seen:
            return
        self.seen[key] = weakref.ref(storage, lambda _: self.forget(key, size))
        self.live += size
        self.peak = max(self.peak, self.live)

    def forget(self, key: int, size: int) -> None:
        """Count a storage no longer."""
        del self.seen[key]
        self.live -= size


class Bench:
    """A layer with random weights and a batch of random sequences on a device, ready to be measured."""

    def __init__(self, row: Row, size: Size, batch: int, device: torch.device) -> None:
        torch.manual_seed(0)
        self.device = device
        self.layer = row.make(size).to(device)
        self.x = torch.randn(batch, size.n, size.d, device=device, requires_grad=True)
        self.gradient = torch.randn_like(self.x, requires_grad=False)

    def forward(self) -> None:
        """Run the forward pass as for a translation: nothing is kept for a gradient."""
        with torch.no_grad():
            self.layer(self.x)

    def forward_and_backward(self) -> None:
        """Run both passes as in training: gradients of the weights and of the input."""
        self.layer(self.x).backward(self.gradient)
        self.layer.zero_grad()
        self.x.grad = None

    def seconds(self, work: Callable[[], None]) -> float:
        """Return the median time of some work that has run before: as often as fits 0.2 s, but 3 to 30 times."""
        times: list[float] = []
        while len(times) < FEWEST or (sum(times) < SECONDS and len(times) < MOST):
            times.append(self.time(work))
        return statistics.median(times)

    def time(self, work: Callable[[], None]) -> float:
        """Return the seconds that some work takes once."""
        self.synchronize()
        started = time.perf_counter()
        work()
        self.synchronize()
        return time.perf_counter() - started

    def synchronize(self) -> None:
        """Wait until a GPU has done all that it was asked for."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def peak_bytes(self, work: Callable[[], None]) -> int:
        """Return the most memory that some work held at once, beyond weights and input.

        On a GPU, it is what torch's allocator says; elsewhere, what `LiveBytes` counts.
        """
        if self.device.type == "cuda":
            before = torch.cuda.memory_allocated(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            work()
            return torch.cuda.max_memory_allocated(self.device) - before
        with LiveBytes(self.x, self.gradient, *self.layer.parameters()) as counter:
            work()
        return counter.peak
