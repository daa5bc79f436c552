"""The largest of many values, faster on a CPU than PyTorch's ``topk``.

Axis letters: see `modeling_vaswani.py`.
"""

from collections.abc import Sequence

import torch


# Values of a block in which `largest` looks for one, and the fewest blocks for which that is faster than ``topk``.
BLOCK, FEWEST_BLOCKS = 8, 256


def largest(
    values: torch.Tensor, count: int, offsets: torch.Tensor | None = None, maxima: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `count` largest of (R, V) values and their places, the largest first, as ``topk`` does.

    With (B, K) `offsets`, one of each row, they are the largest sums of each K rows, (B, count), and places count
    through all K rows.

    On a CPU, ``topk`` takes longer over a vocabulary than a softmax. The largest values lie in as many of the blocks
    whose own largest value is largest: these are found among an eighth as many, and searched alone. A block has every
    (V / 8)-th value of a row, so that the blocks' largest values, `maxima`, are found by vector instructions.
    """
    size, num_beams = values.shape[1], 1 if offsets is None else offsets.shape[1]
    width = size // BLOCK
    if values.device.type != "cpu" or num_beams * width < max(FEWEST_BLOCKS, BLOCK * count):
        sums = values if offsets is None else values.unflatten(0, (-1, num_beams)) + offsets[..., None]
        return sums.flatten(1).topk(count)
    _, blocks = largest(block_maxima(values) if maxima is None else maxima, count, offsets)  # (B, count)
    places = blocks if num_beams == 1 else blocks // width * size + blocks % width
    places = (places[:, None] + width * torch.arange(BLOCK)[:, None]).flatten(1)  # (B, BLOCK * count)
    if width * BLOCK < size:
        rest = (torch.arange(num_beams)[:, None] * size + torch.arange(width * BLOCK, size)).flatten()
        places = torch.cat([places, rest.expand(len(places), -1)], dim=1)
    sums = values.reshape(-1, num_beams * size).gather(1, places)
    if offsets is not None:
        sums = sums + offsets.gather(1, places // size)
    best, chosen = sums.topk(count)
    return best, places.gather(1, chosen)


def block_maxima(values: torch.Tensor) -> torch.Tensor:
    """Return the largest value of each block of (R, V) values, (R, V // 8)."""
    width = values.shape[1] // BLOCK
    return values[:, : width * BLOCK].unflatten(1, (BLOCK, width)).amax(1)


def mend_block_maxima(maxima: torch.Tensor, values: torch.Tensor, columns: Sequence[int]) -> None:
    """Take into account that these columns of (R, V) values have changed."""
    width = maxima.shape[1]
    blocks = [column % width for column in columns if column < width * BLOCK]
    maxima[:, blocks] = values[:, : width * BLOCK].unflatten(1, (BLOCK, width))[..., blocks].amax(1)


__all__ = ["BLOCK", "block_maxima", "largest", "mend_block_maxima"]
