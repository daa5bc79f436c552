"""The model and its loss in training on a GPU, over sentences that stand one after another.

A batch is one long row of tokens, so nothing is computed for padding, and an update of any lengths is a single batch.
"""

from collections.abc import Iterator

import torch
from torch import nn
from transformers import PreTrainedModel

from training.data.packing import BLOCK
from training.gpu import operations
from training.gpu.operations import Projected, Seen, same_sentence
from training.gpu.sublayers import (
    Attention,
    AttentionSublayer,
    FeedForwardSublayer,
    Linear,
    Residual,
    RoundedWeights,
    SourceProjection,
)
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


MAPS = "q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"


def why_not(model: PreTrainedModel, device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why a model cannot be trained so, with products of a type on a device, or None if it can."""
    if type(model) is not VaswaniForConditionalGeneration:
        return f"only the Transformer's need not be, and this is {type(model).__name__}"
    config = model.config
    if config.attention_restriction is not None:
        return f"attention is restricted (attention_restriction={config.attention_restriction})"
    if config.attention_dropout:
        return f"the kernels for it have no attention_dropout, here {config.attention_dropout}"
    if config.activation_function != "relu":
        return f"the kernels for it have no activation_function={config.activation_function!r}, only 'relu'"
    if config.position_embedding_type != "sinusoidal":
        return f"positions must be sinusoidal for it, and are {config.position_embedding_type}"
    for name, module in model.named_modules():
        if name.split(".")[-1] in MAPS and type(module) is not nn.Linear:
            return f"they are computed by weights alone, and {name} is {type(module).__name__}"
        if isinstance(module, VaswaniAttention):
            for width in (module.head_dim, module.v_head_dim):
                if width < 16 or width & (width - 1):
                    return f"the kernels for it want heads of 16, 32, 64, ... columns, and one has {width}"
    try:
        try_kernels(model.model.encoder.layers[0], model.config.vocab_size, device, dtype)
    except Exception as error:  # Triton and the libraries that it calls raise many kinds
        return f"Triton's kernels do not work here ({first_line(error)})"
    return None


def try_kernels(layer: VaswaniLayer, vocab_size: int, device: torch.device, dtype: torch.dtype) -> None:
    """Compute what a layer does between its products, with gradients: that takes Triton and a GPU not too old."""
    attention, norm, rows = layer.self_attn, layer.self_attn_layer_norm, 2 * BLOCK
    widths = attention.q_proj.out_features, attention.k_proj.out_features, attention.v_proj.out_features
    projected = Projected(*(torch.zeros(rows, width, device=device, dtype=dtype) for width in widths))
    sentences = torch.zeros(rows, device=device, dtype=torch.int32)
    seen, heads = same_sentence(sentences, sentences), widths[0] // attention.head_dim
    found = operations.attend(projected, seen, heads, attention.scaling)
    operations.attend_backward(projected, seen, heads, attention.scaling, *found, found[0], into=projected)
    states = torch.zeros(rows, attention.out_proj.out_features, device=device, dtype=dtype)
    gain, bias = (weight.detach().to(device) for weight in (norm.weight, norm.bias))
    seed = torch.zeros((), device=device, dtype=torch.int64)
    normed = operations.add_and_norm(states, states, gain, bias, seed, norm.eps, layer.dropout)
    operations.add_and_norm_backward(states, normed, gain, seed, layer.dropout)
    operations.relu_backward_(states, states)
    operations.softmax_and_logsumexp_(torch.zeros(2, vocab_size, device=device, dtype=dtype))


class PackedObjective(nn.Module):
    """The counterpart of `LabelSmoothedObjective` for a `PackedBatch`.

    Parameters
    ----------
    model : VaswaniForConditionalGeneration
        Kept as `model`; `why_not` must have nothing against it.
    label_smoothing : float
        eps in [0, 1): 0.1 in the paper.
    """

    def __init__(self, model: VaswaniForConditionalGeneration, label_smoothing: float):
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.rounded: RoundedModel | None = None  # once it is known where the model is, and in what type it computes

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
        source, target = (input_ids, source_places, source_sentences), (labels, target_places, target_sentences)
        encoder, decoder = self.model.model.encoder, self.model.model.decoder
        assert isinstance(encoder, VaswaniEncoder)
        assert isinstance(decoder, VaswaniDecoder)
        weight, device = self.model.lm_head.weight, labels.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        if self.rounded is None or not self.rounded.fits(weight.device, dtype):
            self.rounded = RoundedModel(encoder, decoder, dtype)
        with torch.autocast(device, enabled=False):  # the types are chosen here, not by it
            states = decoder_states(encoder, decoder, self.rounded, source, target)
        weight, states = as_one_product(self.model.lm_head, states)
        return fused_label_smoothed_sums(
            states,
            weight,
            labels,
            self.label_smoothing,
            frozen_row=self.model.config.pad_token_id,
            normalize=operations.softmax_and_logsumexp_,
        )


class RoundedModel:
    """A model's weights as its products take them: `layers` has maps by attention or feed-forward sublayer's name."""

    def __init__(self, encoder: VaswaniEncoder, decoder: VaswaniDecoder, dtype: torch.dtype):
        self.weights = RoundedWeights(dtype)
        self.layers: dict[VaswaniLayer, dict[str, Linear]] = {}
        for layer in (*encoder.layers, *decoder.layers):
            attention = layer.self_attn
            linear = {
                "self_attn": [attention.q_proj, attention.k_proj, attention.v_proj],
                "self_attn.out": [attention.out_proj],
                "fc1": [layer.fc1],
                "fc2": [layer.fc2],
            }
            if isinstance(layer, VaswaniDecoderLayer):
                across = layer.encoder_attn
                linear |= {"encoder_attn": [across.q_proj], "encoder_attn.out": [across.out_proj]}
            self.layers[layer] = {name: Linear.of(modules, self.weights) for name, modules in linear.items()}
        across = [layer.encoder_attn for layer in decoder.layers]
        keys_and_values = [projection for each in across for projection in (each.k_proj, each.v_proj)]
        self.source = Linear.of(keys_and_values, self.weights)

    def fits(self, device: torch.device, dtype: torch.dtype) -> bool:
        """Return whether the copies are where the model is, and of the type wanted."""
        return self.source.weight.device == device and self.source.weight.dtype == dtype


# The ids of one side of a batch, or its labels, with their places and their sentences.
PackedSide = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def decoder_states(
    encoder: VaswaniEncoder, decoder: VaswaniDecoder, rounded: RoundedModel, source: PackedSide, target: PackedSide
) -> torch.Tensor:
    """Return what the decoder gives, (M, D), for N rows of sources and M of targets."""
    rounded.weights.write()
    dtype = rounded.weights.dtype
    input_ids, source_places, source_sentences = source
    labels, target_places, target_sentences = target
    norms = 2 * len(encoder.layers) + 3 * len(decoder.layers)
    seeds = iter(torch.randint(2**31 - 1, (norms,), device=input_ids.device).unbind())
    seen = same_sentence(source_sentences, source_sentences)
    states = embed(encoder, input_ids, source_places, dtype)
    for layer in encoder.layers:
        states = attend(layer, "self_attn", rounded.layers[layer], seen, states, seeds)
        states = feed_forward(layer, rounded.layers[layer], states, seeds)
    key_values = project_source(decoder, rounded.source, states)
    seen = same_sentence(target_sentences, target_sentences, is_causal=True)
    seen_source = same_sentence(target_sentences, source_sentences)
    states = embed(decoder, decoder_input_ids(decoder.config, labels, target_places), target_places, dtype)
    for layer, key_value in zip(decoder.layers, key_values, strict=True):
        states = attend(layer, "self_attn", rounded.layers[layer], seen, states, seeds)
        states = attend(layer, "encoder_attn", rounded.layers[layer], seen_source, states, seeds, key_value)
        states = feed_forward(layer, rounded.layers[layer], states, seeds)
    return states


def decoder_input_ids(config: VaswaniConfig, labels: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return the labels of each sentence shifted right, (M,), as `shift_tokens_right` has them for padded ones."""
    start, pad = config.decoder_start_token_id, config.pad_token_id
    assert start is not None
    assert pad is not None
    shifted = labels.roll(1).masked_fill(places == 0, start)
    return shifted.masked_fill(shifted == -100, pad)


def embed(stack: VaswaniStack, ids: torch.Tensor, places: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the (N, D) states that enter a stack, in the products' type: sections 3.4, 3.5 and 5.4."""
    states = stack.embed(ids, None)
    states = states + stack.embed_positions(places).to(states.dtype)
    return dropout(states, stack.config.dropout, stack.training).to(dtype)


def attend(
    layer: VaswaniLayer,
    name: str,
    linear: dict[str, Linear],
    seen: Seen,
    states: torch.Tensor,
    seeds: Iterator[torch.Tensor],
    key_value: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the (N, D) states behind an attention sublayer, "self_attn" or "encoder_attn"."""
    attention, norm = getattr(layer, name), getattr(layer, f"{name}_layer_norm")
    projections = attention.q_proj, attention.k_proj, attention.v_proj
    how = Attention(
        linear[name],
        linear[f"{name}.out"],
        [projection.out_features for projection in projections],
        attention.q_proj.out_features // attention.head_dim,
        attention.scaling,
        seen,
    )
    return AttentionSublayer.apply(
        how,
        residual(layer, norm, seeds),
        states,
        key_value,
        attention.q_proj.bias,
        attention.v_proj.bias,
        attention.out_proj.weight,
        attention.out_proj.bias,
        norm.weight,
        norm.bias,
        *(projection.weight for projection in projections[: 3 if key_value is None else 1]),
    )


def feed_forward(
    layer: VaswaniLayer, linear: dict[str, Linear], states: torch.Tensor, seeds: Iterator[torch.Tensor]
) -> torch.Tensor:
    """Return the (N, D) states behind a layer's feed-forward sublayer."""
    norm = layer.final_layer_norm
    return FeedForwardSublayer.apply(
        linear["fc1"],
        linear["fc2"],
        layer.activation_dropout if layer.training else 0.0,
        residual(layer, norm, seeds),
        states,
        layer.fc1.weight,
        layer.fc1.bias,
        layer.fc2.weight,
        layer.fc2.bias,
        norm.weight,
        norm.bias,
    )


def residual(layer: VaswaniLayer, norm: nn.LayerNorm, seeds: Iterator[torch.Tensor]) -> Residual:
    """Return how a sublayer of the layer ends, with the next seed; in evaluation nothing is dropped."""
    return Residual(next(seeds), layer.dropout if layer.training else 0.0, norm.eps)


def project_source(decoder: VaswaniDecoder, linear: Linear, states: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the keys and values of each layer of the decoder, side by side, of the encoder's (M, D) states."""
    layers: list[VaswaniDecoderLayer] = list(decoder.layers)
    projections = [(layer.encoder_attn.k_proj, layer.encoder_attn.v_proj) for layer in layers]
    widths = [keys.out_features + values.out_features for keys, values in projections]
    return SourceProjection.apply(linear, widths, states, *(each.weight for pair in projections for each in pair))
