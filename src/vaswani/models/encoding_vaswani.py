"""The encoder without padding, for translation on a CPU: matrices multiply real tokens alone.

Axis letters: see `modeling_vaswani.py`. Here also N real tokens of a batch.
"""

from typing import Any

import torch

from .attention_vaswani import attend
from .fusion_vaswani import AS_WRITTEN, Entering, Fused, multiply
from .int8_vaswani import is_quantized
from .packing_vaswani import one_by_one, projection


# Positions of a batch that are encoded at a time.
MAX_POSITIONS = 512


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
        """Turn (B, S, D) or (B * S, D) states into those of the real tokens, (N, D)."""
        rows = states.flatten(0, -2)
        return rows if self.positions is None else rows.index_select(0, self.positions)

    def put_back(self, rows: torch.Tensor) -> torch.Tensor:
        """Turn (N, D) into (B, S, D), zero at padding."""
        if self.positions is not None:
            padded = rows.new_zeros(self.shape.numel(), rows.shape[1])
            rows = padded.index_copy_(0, self.positions, rows)
        return rows.view(*self.shape, -1)


def encode(encoder: Any, input_ids: torch.Tensor, mask: torch.Tensor, fused: Fused = AS_WRITTEN) -> torch.Tensor:
    """Return what a `VaswaniEncoder` makes of (B, S) ids: (B, S, D), zero at padding.

    A few sentences at a time, whose states fit into a core's cache.

    Parameters
    ----------
    encoder : VaswaniEncoder
        Whose self-attention is not restricted.
    input_ids, mask : Tensor of shape (B, S)
    fused : Fused
        What is between the products.
    """
    hidden_states = encoder.add_positions(encoder.embed(input_ids, None))
    parts = max(1, input_ids.numel() // MAX_POSITIONS)
    encoded = [
        _encode_part(encoder, *part, fused) for part in zip(hidden_states.chunk(parts), mask.chunk(parts), strict=True)
    ]
    return torch.cat(encoded)


def _encode_part(encoder: Any, hidden_states: torch.Tensor, mask: torch.Tensor, fused: Fused) -> torch.Tensor:
    """Turn (B, S, D) embeddings with their positions into (B, S, D) states."""
    real, dtype = RealTokens(mask), attention_dtype(encoder)
    states, legal = real.pick(hidden_states), None
    if real.positions is not None:
        legal = torch.zeros_like(mask, dtype=dtype).masked_fill(mask == 0, torch.finfo(dtype).min)
        heads = encoder.config.encoder_attention_heads
        legal = legal[:, None].expand(-1, mask.shape[1], -1).repeat_interleave(heads, dim=0)  # (B * H, S, S)
    entering = fused.enter(states, states.dtype, is_quantized(encoder))
    for layer in encoder.layers:
        attended = _self_attention(layer.self_attn, entering, real, legal, dtype, fused)
        leaving = multiply(projection(layer.self_attn, "out", [layer.self_attn.out_proj]), attended)
        norm = layer.self_attn_layer_norm
        states, *entering = fused.add_and_norm(*leaving, states, norm.weight, norm.bias, norm.eps)
        hidden = fused.activate(*multiply(projection(layer, "fc1", [layer.fc1]), entering), layer.activation)
        leaving, norm = multiply(projection(layer, "fc2", [layer.fc2]), hidden), layer.final_layer_norm
        states, *entering = fused.add_and_norm(*leaving, states, norm.weight, norm.bias, norm.eps)
    return real.put_back(states)


def _self_attention(
    attention: Any,
    entering: Entering,
    real: RealTokens,
    legal: torch.Tensor | None,
    dtype: torch.dtype,
    fused: Fused,
) -> Entering:
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    leaving = multiply(projection(attention, "qkv", projections), entering)
    together = real.put_back(fused.leave_as(*leaving, dtype)[0])
    widths = (attention.head_dim, attention.head_dim, attention.v_head_dim)
    parts = together.split([part.out_features for part in projections], dim=-1)
    query, key, value = (_heads(part, width) for part, width in zip(parts, widths, strict=True))  # (B * H, S, d_k)
    output = attend(query, key.mT, value, legal, attention.scaling, attention.q_proj.out_features // widths[0])
    return fused.enter(real.pick(output), leaving.product.dtype, leaving.scales is not None)


def source_keys_and_values(
    decoder: Any,
    states: torch.Tensor,
    mask: torch.Tensor | None,
    dtype: torch.dtype,
    fused: Fused = AS_WRITTEN,
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the keys and values of encoder-decoder attention, of all layers.

    Parameters
    ----------
    decoder : VaswaniDecoder
    states : Tensor of shape (B, S, D)
        The encoder's output.
    mask : Tensor of shape (B, S), or None
        1 for each real token; the others are left out on a CPU. On a GPU it would have to wait for their number.
    dtype : dtype
        In which they are wanted.
    fused : Fused
        What is between the products.

    Returns
    -------
    list of (Tensor of shape (B * H, d_k, S), Tensor of shape (B * H, S, d_v))
    """
    attentions = [layer.encoder_attn for layer in decoder.layers]
    parts = [part for attention in attentions for part in (attention.k_proj, attention.v_proj)]
    real = RealTokens(states.new_ones(states.shape[:2]) if mask is None or states.device.type != "cpu" else mask)
    # On a GPU it takes longer to see whether weights have changed than to multiply by each of them once.
    project = projection(decoder, "source", parts) if states.device.type == "cpu" else one_by_one(parts)
    few = MAX_POSITIONS // 2 if states.device.type == "cpu" else len(states) * states.shape[1]
    entering = (fused.enter(some, some.dtype, project.is_int8) for some in real.pick(states).split(few))
    rows = torch.cat([fused.leave_as(*multiply(project, some), dtype)[0] for some in entering])
    widths = [attention.k_proj.out_features + attention.v_proj.out_features for attention in attentions]
    pairs = []
    for attention, together in zip(attentions, rows.split(widths, dim=-1), strict=True):
        keys, values = real.put_back(together).tensor_split([attention.k_proj.out_features], dim=-1)
        keys = keys.unflatten(-1, (-1, attention.head_dim)).permute(0, 2, 3, 1).flatten(0, 1)
        pairs.append((keys.contiguous(), _heads(values, attention.v_head_dim).contiguous()))  # of one sentence, too
    return pairs


def attention_dtype(model: Any, in_one_pass: bool = False) -> torch.dtype:
    """Return the type in which attention is fastest, of those that are as exact as the model's matrices.

    Attention waits for memory, so bfloat16 takes less than half of float32's time with four beams (measured on Zen 4).
    With Intel's AMX, whose tiles so small products do not fill, float32 is the faster one, as it is on CPUs that do
    not multiply bfloat16. Compiled attention of single queries, `in_one_pass`, only reads bfloat16 and computes in
    float32, which is faster on these, too (measured on Zen 3; not with AMX).
    """
    if model.device.type != "cpu" or not (model.dtype is torch.bfloat16 or is_quantized(model)):
        return model.dtype
    if in_one_pass:
        return torch.bfloat16
    has_bfloat16, has_tiles = (
        getattr(torch.cpu, name, lambda: False)() for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    )
    return torch.bfloat16 if has_bfloat16 and not has_tiles else torch.float32


def _heads(states: torch.Tensor, width: int) -> torch.Tensor:
    """Turn (B, S, H * width) into (B * H, S, width)."""
    return states.unflatten(-1, (-1, width)).transpose(1, 2).flatten(0, 1)


__all__ = ["attention_dtype", "encode", "source_keys_and_values"]
