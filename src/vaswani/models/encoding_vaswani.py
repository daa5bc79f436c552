"""The encoder without padding, for translation on a CPU: matrices multiply real tokens alone.

Axis letters: see `modeling_vaswani.py`. Here also N real tokens of a batch.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import relu, scaled_dot_product_attention

from .packing_vaswani import projection


class RealTokens:
    """Where the real tokens of a padded batch are.

    Parameters
    ----------
    mask : Tensor of shape (B, S)
        1 for each real token.
    """

    def __init__(self, mask: torch.Tensor):
        self.shape = mask.shape
        self.positions = None if mask.all() else mask.flatten().nonzero()[:, 0]  # (N,), None if all are real

    def pick(self, states: torch.Tensor) -> torch.Tensor:
        """Turn (B, S, D) states into those of the real tokens, (N, D)."""
        rows = states.flatten(0, 1)
        return rows if self.positions is None else rows.index_select(0, self.positions)

    def put_back(self, rows: torch.Tensor) -> torch.Tensor:
        """Turn (N, D) into (B, S, D), zero at padding."""
        if self.positions is not None:
            padded = rows.new_zeros(self.shape.numel(), rows.shape[1])
            rows = padded.index_copy_(0, self.positions, rows)
        return rows.view(*self.shape, -1)


def encode(encoder: Any, input_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return what a `VaswaniEncoder` makes of (B, S) ids: (B, S, D), zero at padding.

    Parameters
    ----------
    encoder : VaswaniEncoder
        Whose self-attention is not restricted.
    input_ids, mask : Tensor of shape (B, S)
    """
    real = RealTokens(mask)
    rows = real.pick(encoder.add_positions(encoder.embed(input_ids, None)))
    legal = None if real.positions is None else mask.bool()[:, None, None]  # (B, 1, 1, S)
    for layer in encoder.layers:
        rows = layer.self_attn_layer_norm(rows + _self_attention(layer.self_attn, rows, real, legal))
        hidden = relu(projection(layer, "fc1", [layer.fc1])(rows))
        rows = layer.final_layer_norm(rows + projection(layer, "fc2", [layer.fc2])(hidden))
    return real.put_back(rows)


def _self_attention(attention: Any, rows: torch.Tensor, real: RealTokens, legal: torch.Tensor | None) -> torch.Tensor:
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    together = projection(attention, "qkv", projections)(rows).split([part.out_features for part in projections], -1)
    widths = (attention.head_dim, attention.head_dim, attention.v_head_dim)
    query, key, value = (
        real.put_back(part).unflatten(-1, (-1, width)).transpose(1, 2)  # (B, H, S, d_k)
        for part, width in zip(together, widths, strict=True)
    )
    output = scaled_dot_product_attention(query, key, value, attn_mask=legal, scale=attention.scaling)
    return projection(attention, "out", [attention.out_proj])(real.pick(output.transpose(1, 2).flatten(2)))


def source_keys_and_values(
    decoder: Any, states: torch.Tensor, mask: torch.Tensor | None
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the keys and values of encoder-decoder attention, of all layers.

    Parameters
    ----------
    decoder : VaswaniDecoder
    states : Tensor of shape (B, S, D)
        The encoder's output.
    mask : Tensor of shape (B, S), or None
        1 for each real token; the others are left out on a CPU. On a GPU it would have to wait for their number.

    Returns
    -------
    list of (Tensor of shape (B * H, d_k, S), Tensor of shape (B * H, S, d_v))
    """
    attentions = [layer.encoder_attn for layer in decoder.layers]
    parts = [part for attention in attentions for part in (attention.k_proj, attention.v_proj)]
    real = RealTokens(states.new_ones(states.shape[:2]) if mask is None or states.device.type != "cpu" else mask)
    rows = projection(decoder, "source", parts)(real.pick(states))
    each: Sequence[torch.Tensor] = rows.split([part.out_features for part in parts], dim=-1)
    return [
        (
            _heads(real.put_back(keys), attention.head_dim).mT.contiguous(),
            _heads(real.put_back(values), attention.v_head_dim),
        )
        for attention, keys, values in zip(attentions, each[::2], each[1::2], strict=True)
    ]


def _heads(states: torch.Tensor, width: int) -> torch.Tensor:
    """Turn (B, S, H * width) into (B * H, S, width)."""
    return states.unflatten(-1, (-1, width)).transpose(1, 2).flatten(0, 1)


__all__ = ["encode", "source_keys_and_values"]
