"""The model's states in training on a CPU, through the sublayers of `sublayers.py` instead of its own methods."""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from training.cpu import kernels
from training.cpu.kernels import LANES, CannotCompile, Shape
from training.cpu.sublayers import AttentionSublayer, Embeddings, FeedForwardSublayer, Options
from vaswani.models.modeling_vaswani import (
    VaswaniAttention,
    VaswaniDecoder,
    VaswaniEncoder,
    VaswaniForConditionalGeneration,
    VaswaniLayer,
    VaswaniStack,
)


# States (N, D) in float32, and the same rounded.
States = tuple[torch.Tensor, torch.Tensor]


def why_not(model: PreTrainedModel) -> str | None:
    """Return why a model cannot be trained so, or None if it can."""
    if type(model) is not VaswaniForConditionalGeneration:
        return f"they are for the Transformer alone, not for {type(model).__name__}"
    config = model.config
    if config.attention_restriction is not None:
        return f"they do not restrict attention (attention_restriction={config.attention_restriction})"
    if config.activation_function != "relu":
        return f"they have no activation_function={config.activation_function!r}, only 'relu'"
    for name, parameter in model.named_parameters():
        if type(parameter) is not nn.Parameter or parameter.dtype != torch.float32:
            return f"they are for weights in float32, and {name} is {parameter.dtype}"
    widths = {config.d_model, config.encoder_ffn_dim, config.decoder_ffn_dim}
    for module in model.modules():
        if isinstance(module, VaswaniAttention):
            widths |= {module.head_dim, module.v_head_dim}
    if odd := [width for width in sorted(widths) if width % LANES]:
        return f"they are for widths that are multiples of {LANES}, of heads as well, and one is {odd[0]}"
    try:
        kernels.library()
    except CannotCompile as error:
        return str(error)
    return None


def decoder_states(
    model: VaswaniForConditionalGeneration,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    decoder_input_ids: torch.Tensor,
) -> States:
    """Return what the decoder gives for (B, S) sources and (B, T) targets shifted right.

    Returns
    -------
    Tensors of shape (N, D)
        N is `kernels.padded(B * T)`; the rows behind the first B * T have no meaning, or are zero where rounded.

    Raises
    ------
    IndexError
        If an id has no embedding.
    """
    encoder, decoder = model.model.encoder, model.model.decoder
    assert isinstance(encoder, VaswaniEncoder)
    assert isinstance(decoder, VaswaniDecoder)
    mask = attention_mask.bool().contiguous()
    batch, sources = input_ids.shape
    targets = decoder_input_ids.shape[1]
    states, target_states = embed(encoder, decoder, input_ids, decoder_input_ids)
    for layer in encoder.layers:
        states = attend(layer, "self_attn", (batch, sources, sources), states, mask=mask)
        states = feed_forward(layer, states, batch * sources)
    source, states = states, target_states
    for layer in decoder.layers:
        states = attend(layer, "self_attn", (batch, targets, targets), states, is_causal=True)
        states = attend(layer, "encoder_attn", (batch, targets, sources), states, source, mask=mask)
        states = feed_forward(layer, states, batch * targets)
    return states


def embed(encoder: VaswaniStack, decoder: VaswaniStack, *ids: torch.Tensor) -> list[States]:
    """Return the states of (B, S) and (B, T) ids that enter the two stacks: sections 3.4 and 3.5."""
    sides = [
        (each.contiguous(), stack.positions(each.shape[1], each.device).float())
        for stack, each in zip((encoder, decoder), ids, strict=True)
    ]
    pad = -1 if encoder.config.pad_token_id is None else encoder.config.pad_token_id
    p = encoder.config.dropout if encoder.training else 0.0
    tables = encoder.embed_tokens.weight, decoder.embed_tokens.weight
    for each, table in zip(ids, tables, strict=True):
        check_ids(each, len(table))
    if tables[0] is tables[1]:
        states = Embeddings.apply(tables[0], pad, p, *sides[0], *sides[1])
        return [states[:2], states[2:]]
    return [Embeddings.apply(table, pad, p, *side) for table, side in zip(tables, sides, strict=True)]


def check_ids(ids: torch.Tensor, count: int) -> None:
    """Refuse ids that the kernels would look up beyond their memory.

    Raises
    ------
    IndexError
        If an id is not one of `count`.
    """
    low, high = (int(each) for each in ids.aminmax())
    if low < 0 or high >= count:
        raise IndexError(f"ids from {low} to {high}: they must be from 0 to {count - 1}, as there are embeddings")


def attend(
    layer: VaswaniLayer,
    name: str,
    lengths: tuple[int, int, int],
    states: States,
    source: States | tuple[None, None] = (None, None),
    **options: Any,
) -> States:
    """Return the states behind an attention sublayer, "self_attn" or "encoder_attn"; `lengths` are B, T and S."""
    attention, norm = getattr(layer, name), getattr(layer, f"{name}_layer_norm")
    projections = attention.q_proj, attention.k_proj, attention.v_proj
    batch, queries, keys = lengths
    heads = attention.q_proj.out_features // attention.head_dim
    return AttentionSublayer.apply(
        *states,
        *source,
        *(projection.weight for projection in projections),
        *(projection.bias for projection in projections),
        attention.out_proj.weight,
        attention.out_proj.bias,
        norm.weight,
        norm.bias,
        Shape(batch, heads, queries, keys, attention.head_dim, attention.v_head_dim),
        options_of(layer, norm, batch * queries, attention.dropout)._replace(**options),
    )


def feed_forward(layer: VaswaniLayer, states: States, rows: int) -> States:
    """Return the states behind a layer's feed-forward sublayer; `rows` of them are not padding."""
    norm = layer.final_layer_norm
    return FeedForwardSublayer.apply(
        *states,
        layer.fc1.weight,
        layer.fc1.bias,
        layer.fc2.weight,
        layer.fc2.bias,
        norm.weight,
        norm.bias,
        options_of(layer, norm, rows, layer.activation_dropout),
    )


def options_of(layer: VaswaniLayer, norm: nn.LayerNorm, rows: int, inner_dropout: float) -> Options:
    """Return what a sublayer of the layer does; in evaluation it drops nothing."""
    p, inner = (layer.dropout, inner_dropout) if layer.training else (0.0, 0.0)
    return Options(rows, p, inner, norm.eps)
