"""The model and its loss in training on a GPU, over sentences that stand one after another.

A batch is one long row of tokens, so nothing is computed for padding, and an update of any lengths is a single batch.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from training.data.packing import BLOCK
from training.gpu.operations import Seen, add_and_norm, attend, same_sentence
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
        return f"the kernels for it have no attention_dropout, here {config.attention_dropout}"
    if config.position_embedding_type != "sinusoidal":
        return f"positions must be sinusoidal for it, and are {config.position_embedding_type}"
    for module in model.modules():
        if isinstance(module, VaswaniAttention):
            for width in (module.head_dim, module.v_head_dim):
                if width < 16 or width & (width - 1):
                    return f"the kernels for it want heads of 16, 32, 64, ... columns, and one has {width}"
    try:
        try_kernels(model.model.encoder.layers[0], device, dtype)
    except Exception as error:  # Triton and the libraries that it calls raise many kinds
        return f"Triton's kernels do not work here ({first_line(error)})"
    return None


def try_kernels(layer: VaswaniLayer, device: torch.device, dtype: torch.dtype) -> None:
    """Compute what a layer does between its products, with gradients: that takes Triton and a GPU not too old."""
    attention, norm, rows = layer.self_attn, layer.self_attn_layer_norm, 2 * BLOCK
    columns = [
        each.out_features for each in (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj)
    ]
    query, key, value, states = (
        torch.zeros(rows, width, device=device, dtype=dtype, requires_grad=True) for width in columns
    )
    gain, bias = (weight.detach().to(device) for weight in (norm.weight, norm.bias))
    sentences = torch.zeros(rows, device=device, dtype=torch.int32)
    seen = same_sentence(sentences, sentences)
    output = attend(query, key, value, *seen, columns[0] // attention.head_dim, attention.scaling)[0]
    normed = add_and_norm(states, states, gain, bias, sentences[0], norm.eps, layer.dropout)[0]
    (output.sum() + normed.sum()).backward()


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
    norms = 2 * len(encoder.layers) + 3 * len(decoder.layers)
    seeds = iter(torch.randint(2**31 - 1, (norms,), device=input_ids.device).unbind())
    seen = same_sentence(source_sentences, source_sentences)
    source_states = embed(encoder, input_ids, source_places)
    for layer in encoder.layers:
        source_states = encoder_layer(layer, source_states, seen, seeds)
    seen = same_sentence(target_sentences, target_sentences, is_causal=True)
    seen_source = same_sentence(target_sentences, source_sentences)
    states = embed(decoder, decoder_input_ids(model.config, labels, target_places), target_places)
    for layer in decoder.layers:
        states = decoder_layer(layer, states, seen, source_states, seen_source, seeds)
    return states


def decoder_input_ids(config: VaswaniConfig, labels: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return the labels of each sentence shifted right, (M,), as `shift_tokens_right` has them for padded ones."""
    start, pad = config.decoder_start_token_id, config.pad_token_id
    assert start is not None
    assert pad is not None
    shifted = labels.roll(1).masked_fill(places == 0, start)
    return shifted.masked_fill(shifted == -100, pad)


def embed(stack: VaswaniStack, ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return the (N, D) states that enter a stack, in the products' type: sections 3.4, 3.5 and 5.4."""
    states = stack.embed(ids, None)
    states = dropout(states + stack.embed_positions(places).to(states.dtype), stack.config.dropout, stack.training)
    device = states.device.type
    return states.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else states


def encoder_layer(
    layer: VaswaniLayer, states: torch.Tensor, seen: Seen, seeds: Iterator[torch.Tensor]
) -> torch.Tensor:
    """Return the (N, D) states behind a layer of the encoder: section 3.1, Figure 1 left."""
    output = attend_from(layer.self_attn, states, seen)
    states = normalize(layer, layer.self_attn_layer_norm, states, output, seeds)
    return normalize(layer, layer.final_layer_norm, states, layer._feed_forward(states), seeds)


def decoder_layer(
    layer: VaswaniDecoderLayer,
    states: torch.Tensor,
    seen: Seen,
    source_states: torch.Tensor,
    seen_source: Seen,
    seeds: Iterator[torch.Tensor],
) -> torch.Tensor:
    """Return the (M, D) states behind a layer of the decoder: section 3.1, Figure 1 right."""
    output = attend_from(layer.self_attn, states, seen)
    states = normalize(layer, layer.self_attn_layer_norm, states, output, seeds)
    output = attend_from(layer.encoder_attn, states, seen_source, source_states)
    states = normalize(layer, layer.encoder_attn_layer_norm, states, output, seeds)
    return normalize(layer, layer.final_layer_norm, states, layer._feed_forward(states), seeds)


def normalize(
    layer: VaswaniLayer, norm: nn.LayerNorm, states: torch.Tensor, output: torch.Tensor, seeds: Iterator[torch.Tensor]
) -> torch.Tensor:
    """LayerNorm(x + Dropout(Sublayer(x))), sections 3.1 and 5.4, with the next seed for what is dropped."""
    p = layer.dropout if layer.training else 0.0
    return add_and_norm(states, output, norm.weight, norm.bias, next(seeds), norm.eps, p)[0]


def attend_from(
    attention: VaswaniAttention, states: torch.Tensor, seen: Seen, source_states: torch.Tensor | None = None
) -> torch.Tensor:
    """Return multi-head attention (section 3.2.2) from (M, D) states, to themselves or to (N, D) others."""
    projections = attention.q_proj, attention.k_proj, attention.v_proj
    if source_states is None:
        query, key, value = project(projections, states)
    else:
        query, (key, value) = attention.q_proj(states), project(projections[1:], source_states)
    heads = attention.q_proj.out_features // attention.head_dim
    return attention.out_proj(attend(query, key, value, *seen, heads, attention.scaling)[0])


def project(projections: Sequence[nn.Linear], states: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return what several projections make of the same states, computed as one product."""
    weight = torch.cat([projection.weight for projection in projections])
    biases = [projection.bias for projection in projections]
    bias = None if biases[0] is None else torch.cat(biases)
    return nn.functional.linear(states, weight, bias).split([each.out_features for each in projections], dim=-1)
