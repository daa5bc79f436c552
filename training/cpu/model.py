"""The model's states in training on a CPU, through the sublayers of `sublayers.py` instead of its own methods.

Positions of padding are left out: no row of any matrix is one of them.
"""

from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from training.cpu import kernels
from training.cpu.kernels import LANES, CannotCompile, Heads, Sentences
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


def why_not(model: PreTrainedModel, dtype: torch.dtype) -> str | None:
    """Return why a model cannot be trained so, with products in that type, or None if it can."""
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
        if not parameter.is_contiguous():
            return f"they are for contiguous weights, and {name} is not"
    widths = {config.d_model, config.encoder_ffn_dim, config.decoder_ffn_dim}
    for module in model.modules():
        if isinstance(module, VaswaniAttention):
            widths |= {module.q_proj.out_features, module.v_proj.out_features}
    if odd := [width for width in sorted(widths) if width % LANES]:
        return f"they are for widths that are multiples of {LANES}, of all heads together as well, and one is {odd[0]}"
    try:
        kernels.library(dtype)
    except CannotCompile as error:
        return str(error)
    return None


def decoder_states(
    model: VaswaniForConditionalGeneration,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    labels: torch.Tensor,
    dtype: torch.dtype,
) -> tuple[States, torch.Tensor]:
    """Return what the decoder gives for (B, S) sources and (B, T) labels, and the label of each of its states.

    Products are in `dtype`.

    Returns
    -------
    states : Tensors of shape (N, D)
        N is `kernels.padded(rows)`; the rows behind those of the labels have no meaning, or are zero where rounded.
    labels : Tensor of shape (rows,)
        Those of each sentence, up to its last one that is not -100.

    Raises
    ------
    IndexError
        If an id has no embedding.
    """
    encoder, decoder = model.model.encoder, model.model.decoder
    assert isinstance(encoder, VaswaniEncoder)
    assert isinstance(decoder, VaswaniDecoder)
    is_target = (labels != -100).flip(1).cumsum(1).flip(1) > 0  # it, or one behind it
    source = Side.of(input_ids, attention_mask.bool())
    target = Side.of(model.prepare_decoder_input_ids_from_labels(labels), is_target)
    states, target_states = embed(encoder, decoder, dtype, source, target)
    for layer in encoder.layers:
        states = attend(layer, "self_attn", source.sentences, source.sentences, states)
        states = feed_forward(layer, states, source.sentences.rows)
    source_states, states = states, target_states
    for layer in decoder.layers:
        states = attend(layer, "self_attn", target.sentences, target.sentences, states, is_causal=True)
        states = attend(layer, "encoder_attn", target.sentences, source.sentences, states, source_states)
        states = feed_forward(layer, states, target.sentences.rows)
    return states, labels[is_target]


class Side(NamedTuple):
    """The sources or the targets of a batch, without padding.

    Attributes
    ----------
    ids, places : Tensor of shape (rows,)
        Ids, and their places in their sentences, from 0 on.
    length : int
        Number of such places.
    sentences : Sentences
    """

    ids: torch.Tensor
    places: torch.Tensor
    length: int
    sentences: Sentences

    @classmethod
    def of(cls, ids: torch.Tensor, mask: torch.Tensor) -> "Side":
        """Leave out of (B, T) `ids` those where the `mask` is False."""
        return cls(ids[mask], mask.nonzero()[:, 1].contiguous(), ids.shape[1], Sentences.of(mask.sum(1)))


def embed(encoder: VaswaniStack, decoder: VaswaniStack, dtype: torch.dtype, *sides: Side) -> list[States]:
    """Return the states of sources and targets that enter the two stacks: sections 3.4 and 3.5."""
    pad = -1 if encoder.config.pad_token_id is None else encoder.config.pad_token_id
    p = encoder.config.dropout if encoder.training else 0.0
    tables = encoder.embed_tokens.weight, decoder.embed_tokens.weight
    arguments = []
    for stack, side, table in zip((encoder, decoder), sides, tables, strict=True):
        check_ids(side.ids, len(table))
        arguments.append((side.ids, side.places, stack.positions(side.length, side.ids.device).float()))
    if tables[0] is tables[1]:
        states = Embeddings.apply(tables[0], pad, p, dtype, *arguments[0], *arguments[1])
        return [states[:2], states[2:]]
    return [Embeddings.apply(table, pad, p, dtype, *each) for table, each in zip(tables, arguments, strict=True)]


def check_ids(ids: torch.Tensor, count: int) -> None:
    """Refuse ids that the kernels would look up beyond their memory.

    Raises
    ------
    IndexError
        If an id is not one of `count`.
    """
    if not len(ids):
        return
    low, high = (int(each) for each in ids.aminmax())
    if low < 0 or high >= count:
        raise IndexError(f"ids from {low} to {high}: they must be from 0 to {count - 1}, as there are embeddings")


def attend(
    layer: VaswaniLayer,
    name: str,
    queries: Sentences,
    keys: Sentences,
    states: States,
    source: States | tuple[None, None] = (None, None),
    **options: Any,
) -> States:
    """Return the states behind an attention sublayer, "self_attn" or "encoder_attn"."""
    attention, norm = getattr(layer, name), getattr(layer, f"{name}_layer_norm")
    projections = attention.q_proj, attention.k_proj, attention.v_proj
    count = attention.q_proj.out_features // attention.head_dim
    return AttentionSublayer.apply(
        *states,
        *source,
        *(projection.weight for projection in projections),
        *(projection.bias for projection in projections),
        attention.out_proj.weight,
        attention.out_proj.bias,
        norm.weight,
        norm.bias,
        Heads(queries, keys, count, attention.head_dim, attention.v_head_dim),
        options_of(layer, norm, queries.rows, attention.dropout)._replace(**options),
    )


def feed_forward(layer: VaswaniLayer, states: States, rows: int) -> States:
    """Return the states behind a layer's feed-forward sublayer, of which the first `rows` have a meaning."""
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
