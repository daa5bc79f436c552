"""The most that matrix products give on this machine: what the rate of a translation may be compared with."""

import time
from collections.abc import Callable

import torch

from training.benchmarks.records import GIGA
from vaswani.models.packing_vaswani import multiplies_bfloat16


SIZE = 2048


def peaks(cores: int) -> dict[tuple[str, int], float]:
    """Return GFLOP/s of large products by precision and number of threads, 1 or `cores`.

    The precisions are "bf16", or "fp32" where the CPU does not multiply bfloat16, and "int8", whose products are
    PyTorch's by oneDNN; where it lacks them, they are left out.
    """
    threads, found = torch.get_num_threads(), {}
    fast, dtype = ("bf16", torch.bfloat16) if multiplies_bfloat16() else ("fp32", torch.float32)
    for precision, product in ((fast, float_product(dtype)), ("int8", int8_product())):
        for count in sorted({1, cores}):
            torch.set_num_threads(count)
            if product is not None:
                found[precision, count] = 2 * SIZE**3 / fastest(product) / GIGA
    torch.set_num_threads(threads)
    return found


def float_product(dtype: torch.dtype) -> Callable[[], torch.Tensor]:
    """Return a product of two matrices of this type."""
    left, right = (torch.randn(SIZE, SIZE).to(dtype) for _ in range(2))
    return lambda: left @ right


def int8_product() -> Callable[[], torch.Tensor] | None:
    """Return a product of a matrix of 8 bits with a weight of 8 bits that was laid out before, or None."""
    states = torch.randint(0, 256, (SIZE, SIZE), dtype=torch.uint8)
    weight = torch.randint(-127, 128, (SIZE, SIZE), dtype=torch.int8)
    scales, zeros = torch.ones(SIZE), torch.zeros(SIZE, dtype=torch.int64)
    output = (1.0, 0, torch.bfloat16, "none", [], "")
    try:
        packed = torch.ops.onednn.qlinear_prepack(weight, [SIZE, SIZE])
        torch.ops.onednn.qlinear_pointwise(states, 1.0, 128, packed, scales, zeros, None, *output)
    except (AttributeError, RuntimeError):
        return None
    return lambda: torch.ops.onednn.qlinear_pointwise(states, 1.0, 128, packed, scales, zeros, None, *output)


def fastest(product: Callable[[], object], times: int = 20) -> float:
    """Return the seconds of the fastest of several calls."""
    best = float("inf")
    for _ in range(times):
        started = time.perf_counter()
        product()
        best = min(best, time.perf_counter() - started)
    return best
