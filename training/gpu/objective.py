"""The model and its loss in training on a GPU, over sentences that stand one after another.

A batch is one long row of tokens, so nothing is computed for padding, and an update of any lengths is a single batch.
FlexAttention computes the blocks of attention in which a query and a key are of the same sentence.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers import PreTrainedModel

from training.data.packing import BLOCK
from training.objective.loss import LossSums, as_one_product, fused_label_smoothed_sums
from vaswani import VaswaniConfig
from vaswani.errors import first_line
from vaswani.models.cpu_vaswani import dropout
from vaswani.models.modeling_vaswani import (
    VaswaniAttention,
    VaswaniDecoder,
    VaswaniDecoderLayer,
    VaswaniEncoder,
    VaswaniForConditionalGeneration,
    VaswaniLayer,
    VaswaniStack,
)


# As it is, it would hold the scores of all rows with all rows.
compiled_attention = torch.compile(flex_attention, dynamic=True)
# The compiler asks whether a batch is large before it fuses two kinds of sums. The last update of an epoch is not: for
# that one, all would be compiled again.
ANY_SIZE: dict[str, Any] = {"triton.mix_order_reduction_non_strict_mode": True}


def why_not(model: PreTrainedModel, device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why a model cannot be trained so, with products of a type on a device, or None if it can."""
    if type(model) is not VaswaniForConditionalGeneration:
        return f"only the Transformer's need not be, and this is {type(model).__name__}"
    config = model.config
    if config.attention_restriction is not None:
        return f"attention is restricted (attention_restriction={config.attention_restriction})"
    if config.attention_dropout:
        return f"FlexAttention has no attention_dropout, here {config.attention_dropout}"
    if config.position_embedding_type != "sinusoidal":
        return f"positions must be sinusoidal for it, and are {config.position_embedding_type}"
    for module in model.modules():
        if isinstance(module, VaswaniAttention):
            for width in (module.head_dim, module.v_head_dim):
                if width < 16 or width & (width - 1):
                    return f"FlexAttention wants heads of 16, 32, 64, ... columns, and one has {width}"
    try:
        try_attention(model.model.encoder.layers[0].self_attn, device, dtype)
    except Exception as error:  # the compiler and the libraries that it calls raise many kinds
        return f"FlexAttention does not work here ({first_line(error)})"
    return None


def try_attention(attention: VaswaniAttention, device: torch.device, dtype: torch.dtype) -> None:
    """Attend as a layer does, with gradients, which needs a compiler and a GPU that is not too old."""
    widths = attention.head_dim, attention.head_dim, attention.v_head_dim
    shape = 1, attention.q_proj.out_features // attention.head_dim, 2 * BLOCK
    query, key, value = (
        torch.zeros(*shape, width, device=device, dtype=dtype, requires_grad=True) for width in widths
    )
    sentences = torch.zeros(2 * BLOCK, device=device, dtype=torch.int32)
    mask = block_mask(sentences, sentences)
    output = compiled_attention(query, key, value, block_mask=mask, scale=attention.scaling)
    output[0].sum().backward()


class PackedObjective(nn.Module):
    """The counterpart of `LabelSmoothedObjective` for a `PackedBatch`.

    Parameters
    ----------
    model : VaswaniForConditionalGeneration
        Kept as `model`; `why_not` must have nothing against it.
    label_smoothing : float
        eps in [0, 1): 0.1 in the paper.
    compiled : bool
        Whether `torch.compile` fuses what lies between the matrix products, in one graph for batches of any size. With
        a graph for each layer, Python takes longer to start the layers than a GPU to compute them.
    """

    def __init__(self, model: VaswaniForConditionalGeneration, label_smoothing: float, compiled: bool):
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.compiled = compiled
        self.decoder_states = decoder_states
        if compiled:
            options = {name: value for name, value in ANY_SIZE.items() if name in torch._inductor.list_options()}
            self.decoder_states = torch.compile(decoder_states, dynamic=True, options=options)

    def forward(
        self,
        input_ids: torch.Tensor,
        source_places: torch.Tensor,
        source_sentences: torch.Tensor,
        labels: torch.Tensor,
        target_places: torch.Tensor,
        target_sentences: torch.Tensor,
    ) -> LossSums:
        """Return the sums over the real tokens of the (M,) labels; the arguments are those of a `PackedBatch`."""
        sides = (input_ids, source_places, source_sentences), (labels, target_places, target_sentences)
        states = self.decoder_states(self.model, *sides)
        weight, states = as_one_product(self.model.lm_head, states)
        return fused_label_smoothed_sums(
            states,
            weight,
            labels,
            self.label_smoothing,
            frozen_row=self.model.config.pad_token_id,
            compiled=self.compiled,
        )


# The ids of one side of a batch, or its labels, with their places and their sentences.
PackedSide = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def decoder_states(model: VaswaniForConditionalGeneration, source: PackedSide, target: PackedSide) -> torch.Tensor:
    """Return what the decoder gives, (M, D), for N rows of sources and M of targets."""
    encoder, decoder = model.model.encoder, model.model.decoder
    assert isinstance(encoder, VaswaniEncoder)
    assert isinstance(decoder, VaswaniDecoder)
    input_ids, source_places, source_sentences = source
    labels, target_places, target_sentences = target
    mask = block_mask(source_sentences, source_sentences)
    source_states = embed(encoder, input_ids, source_places)
    for layer in encoder.layers:
        source_states = encoder_layer(layer, source_states, mask)
    mask = block_mask(target_sentences, target_sentences, is_causal=True)
    source_mask = block_mask(target_sentences, source_sentences)
    states = embed(decoder, decoder_input_ids(model.config, labels, target_places), target_places)
    for layer in decoder.layers:
        states = decoder_layer(layer, states, mask, source_states, source_mask)
    return states


def decoder_input_ids(config: VaswaniConfig, labels: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return the labels of each sentence shifted right, (M,), as `shift_tokens_right` has them for padded ones."""
    start, pad = config.decoder_start_token_id, config.pad_token_id
    assert start is not None
    assert pad is not None
    shifted = labels.roll(1).masked_fill(places == 0, start)
    return shifted.masked_fill(shifted == -100, pad)


def block_mask(queries: torch.Tensor, keys: torch.Tensor, is_causal: bool = False) -> BlockMask:
    """Return which keys each query sees: those of its sentence, and of these, if `is_causal`, none behind it.

    Parameters
    ----------
    queries, keys : Tensor of shape (M,) and (N,)
        The sentence of each. They ascend, so a block of them has neighbors.
    is_causal : bool, default=False
        Queries and keys are then the same.
    """
    first_query, first_key = queries[::BLOCK], keys[::BLOCK]
    last_query, last_key = queries[BLOCK - 1 :: BLOCK], keys[BLOCK - 1 :: BLOCK]
    together = (first_query[:, None] <= last_key) & (first_key <= last_query[:, None])
    if is_causal:
        together = together.tril()
    count = together.sum(-1, dtype=torch.int32)
    blocks = together.int().argsort(dim=-1, descending=True, stable=True).int()

    def sees(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        is_same = queries[query] == keys[key]
        return is_same & (key <= query) if is_causal else is_same

    lengths = len(queries), len(keys)
    return BlockMask.from_kv_blocks(
        count[None, None], blocks[None, None], BLOCK_SIZE=BLOCK, mask_mod=sees, seq_lengths=lengths
    )


def embed(stack: VaswaniStack, ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return the (N, D) states that enter a stack: sections 3.4, 3.5 and 5.4."""
    states = stack.embed(ids, None)
    return dropout(states + stack.embed_positions(places).to(states.dtype), stack.config.dropout, stack.training)


def encoder_layer(layer: VaswaniLayer, states: torch.Tensor, mask: BlockMask) -> torch.Tensor:
    """Return the (N, D) states behind a layer of the encoder: section 3.1, Figure 1 left."""
    states = layer._add_and_norm(layer.self_attn_layer_norm, states, attend(layer.self_attn, states, mask))
    return layer._add_and_norm(layer.final_layer_norm, states, layer._feed_forward(states))


def decoder_layer(
    layer: VaswaniDecoderLayer,
    states: torch.Tensor,
    mask: BlockMask,
    source_states: torch.Tensor,
    source_mask: BlockMask,
) -> torch.Tensor:
    """Return the (M, D) states behind a layer of the decoder: section 3.1, Figure 1 right."""
    states = layer._add_and_norm(layer.self_attn_layer_norm, states, attend(layer.self_attn, states, mask))
    attended = attend(layer.encoder_attn, states, source_mask, source_states)
    states = layer._add_and_norm(layer.encoder_attn_layer_norm, states, attended)
    return layer._add_and_norm(layer.final_layer_norm, states, layer._feed_forward(states))


def attend(
    attention: VaswaniAttention, states: torch.Tensor, mask: BlockMask, source_states: torch.Tensor | None = None
) -> torch.Tensor:
    """Return multi-head attention (section 3.2.2) from (M, D) states, to themselves or to (N, D) others."""
    projections = attention.q_proj, attention.k_proj, attention.v_proj
    if source_states is None:
        query, key, value = project(projections, states)
    else:
        query, (key, value) = attention.q_proj(states), project(projections[1:], source_states)
    widths = attention.head_dim, attention.head_dim, attention.v_head_dim
    heads = (
        part.unflatten(-1, (-1, width)).transpose(0, 1)[None]  # (1, H, M, d_k)
        for part, width in zip((query, key, value), widths, strict=True)
    )
    output = compiled_attention(*heads, block_mask=mask, scale=attention.scaling)  # (1, H, M, d_v)
    return attention.out_proj(output[0].transpose(0, 1).flatten(1))


def project(projections: Sequence[nn.Linear], states: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return what several projections make of the same states, computed as one product."""
    weight = torch.cat([projection.weight for projection in projections])
    biases = [projection.bias for projection in projections]
    bias = None if biases[0] is None else torch.cat(biases)
    return nn.functional.linear(states, weight, bias).split([each.out_features for each in projections], dim=-1)
