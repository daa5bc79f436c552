"""What stands in for FlexAttention where there is no GPU: it has no gradients on a CPU."""

import torch
from torch.nn.attention.flex_attention import BlockMask, create_mask
from torch.nn.functional import scaled_dot_product_attention


def mask_of(mask: BlockMask) -> torch.Tensor:
    """Return the (M, N) mask of a BlockMask: what its function allows in the blocks that it names."""
    (queries, keys), (size, _) = mask.seq_lengths, mask.BLOCK_SIZE
    allowed = create_mask(mask.mask_mod, 1, 1, queries, keys, device="cpu")[0, 0]
    blocks = mask.to_dense()[0, 0].bool()
    return allowed & blocks.repeat_interleave(size, 0).repeat_interleave(size, 1)


def attention_by_blocks(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, block_mask: BlockMask, scale: float
) -> torch.Tensor:
    """Return attention within the mask."""
    return scaled_dot_product_attention(query, key, value, attn_mask=mask_of(block_mask), scale=scale)
