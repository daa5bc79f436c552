"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), in the order of the paper.

Axis letters, in all model files: B sentences of a batch, K hypotheses of a sentence (beams), R = B * K rows, S source
positions, T target positions, P positions of a prefix, H heads (h), D model width (d_model), V vocabulary; d_k and d_v
are the widths of a key and of a value of one head. Parameter names are Marian's, so that state dicts move across.

Where the paper leaves something open, we follow the code that made its numbers (tensor2tensor, June 2017): no
normalization at the end of a stack, the decoder's input shifted by a zero vector, initialization as in
`VaswaniPreTrainedModel`. Three things deviate: layer normalization adds 1e-5 to the variance (that code: 1e-6) as
Marian and PyTorch do; the target-space vector that it added to every encoder input is absent, as in the paper; and
projections of one input are initialized each by itself, as `VaswaniPreTrainedModel` says.
"""

import functools
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from transformers import CompileConfig
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask, create_masks_for_generate
from transformers.modeling_flash_attention_utils import FlashAttentionKwargs
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, is_torchdynamo_compiling, logging
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention_vaswani import band, eager_attention_forward, restricted
from .cache_vaswani import CACHE, takes_cache
from .configuration_vaswani import VaswaniConfig
from .cpu_vaswani import dropout
from .encoding_vaswani import encode
from .fusion_vaswani import AS_WRITTEN, Fused, compiled
from .graphs_vaswani import RECORDED, RecordedState
from .incremental_vaswani import IncrementalState, is_as_written, register_modules
from .int8_vaswani import Int8Embedding, Int8Linear, is_quantized, quantize
from .search_vaswani import DecoderState
from .translator_vaswani import TranslatorForConditionalGeneration, TranslatorModel, TranslatorPreTrainedModel


logger = logging.get_logger(__name__)

ACTIVATIONS = {"relu": nn.functional.relu, "swish": nn.functional.silu}


def sinusoids(position_ids: torch.Tensor, d_model: int) -> torch.Tensor:
    """Positional encoding of section 3.5: sines and cosines, interleaved.

    PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i+1) = cos(pos / 10000^(2i / d_model)).

    Parameters
    ----------
    position_ids : Tensor of shape (T,)
        Positions, counted from 0. There is no maximum.
    d_model : int
        Even width of the encoding.

    Returns
    -------
    Tensor of shape (T, d_model), float64
        Or float32 on Apple's MPS, which has no float64. In float32 the sine of position 10,000 would be off by 1e-3.

    Notes
    -----
    The original code concatenated sines and cosines and spaced the wavelengths by 10000^(i / (d_model/2 - 1)); Marian
    concatenates too, with the paper's wavelengths. We follow the paper.
    """
    dtype = torch.float32 if position_ids.device.type == "mps" else torch.float64
    exponents = torch.arange(0, d_model, 2, dtype=dtype, device=position_ids.device) / d_model
    angles = position_ids.to(dtype)[:, None] * 10000.0**-exponents  # (T, D/2)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


class VaswaniSinusoidalPositionalEmbedding(nn.Module):
    """Section 3.5, computed when needed: there is no table to store, to initialize, to cast or to outgrow."""

    def __init__(self, d_model: int):
        super().__init__()
        self.d_model = d_model

    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        return sinusoids(position_ids, self.d_model)


def attention_function(config: VaswaniConfig, restriction: int | None) -> Callable:
    """Return the function that computes attention with the config's back end.

    Raises
    ------
    ValueError
        If attention is restricted, and the back end cannot do that.
    """
    name = config._attn_implementation
    attention = ALL_ATTENTION_FUNCTIONS.get_interface(name, eager_attention_forward)
    return attention if restriction is None else restricted(attention, name, restriction)


class VaswaniAttention(nn.Module):
    """Multi-head attention: Concat(head_1, ..., head_h) W^O, section 3.2.2.

    Serves the three uses of section 3.2.3. Encoder and decoder self-attention take queries, keys and values from
    `hidden_states`; encoder-decoder attention takes keys and values from `key_value_states`. d_k and d_v need not be
    d_model / h. Self-attention may be restricted to a neighborhood of `restriction` positions: section 4.
    """

    def __init__(
        self,
        config: VaswaniConfig,
        num_heads: int,
        is_causal: bool = False,
        layer_idx: int | None = None,
        restriction: int | None = None,
    ):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = is_causal
        self.restriction = restriction
        self.head_dim = config.head_dim or config.d_model // num_heads
        self.v_head_dim = config.v_head_dim or self.head_dim
        self.scaling = self.head_dim**-0.5
        self.dropout = config.attention_dropout
        self.q_proj = nn.Linear(config.d_model, num_heads * self.head_dim, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.d_model, num_heads * self.head_dim, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.d_model, num_heads * self.v_head_dim, bias=config.attention_bias)
        self.out_proj = nn.Linear(num_heads * self.v_head_dim, config.d_model, bias=config.attention_bias)

    def forward(
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[FlashAttentionKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from (B, T, D) `hidden_states`; return (B, T, D) and, where the back end has them, (B, H, T, S)."""
        query = self._split_heads(self.q_proj(hidden_states), self.head_dim)
        key, value = self._keys_and_values(hidden_states, key_value_states, past_key_values)
        attention = attention_function(self.config, self.restriction)
        if self.restriction is not None:
            length = key.shape[2] if past_key_values is None else past_key_values.get_seq_length(self.layer_idx)
            attention = functools.partial(attention, first_position=length - query.shape[2])
        output, weights = attention(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.dropout if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        return self.out_proj(output.flatten(2)), weights

    def _keys_and_values(
        self, hidden_states: torch.Tensor, key_value_states: torch.Tensor | None, past_key_values: Cache | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys (B, H, S, d_k) and values (B, H, S, d_v), projected now or taken from the cache."""
        cache, cross_states_are_cached = past_key_values, False
        if isinstance(past_key_values, EncoderDecoderCache):
            if key_value_states is None:
                cache = past_key_values.self_attention_cache
            else:
                cache = past_key_values.cross_attention_cache
                cross_states_are_cached = past_key_values.is_updated.get(self.layer_idx, False)
        if cross_states_are_cached:
            return cache.layers[self.layer_idx].keys, cache.layers[self.layer_idx].values
        states = hidden_states if key_value_states is None else key_value_states
        key = self._split_heads(self.k_proj(states), self.head_dim)
        value = self._split_heads(self.v_proj(states), self.v_head_dim)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
            if key_value_states is not None and isinstance(past_key_values, EncoderDecoderCache):
                past_key_values.is_updated[self.layer_idx] = True
        return key, value

    @staticmethod
    def _split_heads(states: torch.Tensor, width: int) -> torch.Tensor:
        return states.unflatten(-1, (-1, width)).transpose(1, 2)  # (B, T, H * d_k) -> (B, H, T, d_k)


class VaswaniLayer(GradientCheckpointingLayer):
    """The common part of the layers of both stacks: self-attention, feed-forward network, residuals, normalization."""

    def __init__(
        self,
        config: VaswaniConfig,
        num_heads: int,
        ffn_dim: int,
        is_causal: bool = False,
        layer_idx: int | None = None,
    ):
        super().__init__()
        self.dropout = config.dropout
        self.activation = ACTIVATIONS[config.activation_function]
        self.activation_dropout = config.activation_dropout
        self.self_attn = VaswaniAttention(config, num_heads, is_causal, layer_idx, config.attention_restriction)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.fc1 = nn.Linear(config.d_model, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def _feed_forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """FFN(x) = max(0, x W1 + b1) W2 + b2, Eq. 2 of section 3.3; OPUS-MT's models have swish for max."""
        hidden_states = self.activation(self.fc1(hidden_states))
        hidden_states = dropout(hidden_states, self.activation_dropout, self.training)
        return self.fc2(hidden_states)

    def _add_and_norm(self, norm: nn.LayerNorm, hidden_states: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        """LayerNorm(x + Dropout(Sublayer(x))), sections 3.1 and 5.4."""
        return norm(hidden_states + dropout(output, self.dropout, self.training))


class VaswaniEncoderLayer(VaswaniLayer):
    """Self-attention, then the feed-forward network: section 3.1, Figure 1 left."""

    def __init__(self, config: VaswaniConfig):
        super().__init__(config, config.encoder_attention_heads, config.encoder_ffn_dim)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        output, _ = self.self_attn(hidden_states, attention_mask=attention_mask, **kwargs)
        hidden_states = self._add_and_norm(self.self_attn_layer_norm, hidden_states, output)
        return self._add_and_norm(self.final_layer_norm, hidden_states, self._feed_forward(hidden_states))


class VaswaniDecoderLayer(VaswaniLayer):
    """Causal self-attention, encoder-decoder attention, then the feed-forward network: section 3.1, Figure 1 right."""

    def __init__(self, config: VaswaniConfig, layer_idx: int):
        heads = config.decoder_attention_heads
        super().__init__(config, heads, config.decoder_ffn_dim, is_causal=True, layer_idx=layer_idx)
        self.encoder_attn = VaswaniAttention(config, heads, layer_idx=layer_idx)
        self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    @takes_cache
    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        output, _ = self.self_attn(
            hidden_states, attention_mask=attention_mask, past_key_values=past_key_values, **kwargs
        )
        hidden_states = self._add_and_norm(self.self_attn_layer_norm, hidden_states, output)
        if encoder_hidden_states is not None:
            output, _ = self.encoder_attn(
                hidden_states,
                key_value_states=encoder_hidden_states,
                attention_mask=encoder_attention_mask,
                past_key_values=past_key_values,
                **kwargs,
            )
            hidden_states = self._add_and_norm(self.encoder_attn_layer_norm, hidden_states, output)
        return self._add_and_norm(self.final_layer_norm, hidden_states, self._feed_forward(hidden_states))


class VaswaniPreTrainedModel(TranslatorPreTrainedModel):
    """The base of all models here: the capabilities that transformers asks about, and the initialization.

    Notes
    -----
    Initialization is that of the original code, all of it in `_init_weights`:

    ===============================  ==========================================================================
    embeddings, learned positions    N(0, 1/d_model), ``<pad>``'s row zero; the former are scaled by sqrt(d_model)
    softmax matrix where not tied    N(0, 1/d_model)
    self-attention W^Q, W^K, W^V     Glorot uniform of the one (d_model x 3 h d_k) matrix that they were
    encoder-decoder W^K, W^V         Glorot uniform of the one (d_model x 2 h d_k) matrix that they were
    all other matrices               Glorot uniform
    all biases                       0
    layer normalization              gain 1, bias 0
    ===============================  ==========================================================================

    Known deviation: transformers 5 calls `_init_weights` for no module of custom code that holds no weights itself,
    such as a layer. So rows two to four are not reached when a model is made: these matrices are Glorot uniform each
    by itself, with a bound up to 1.4 times as wide.
    """

    config: VaswaniConfig  # ty: ignore[incompatible-mutable-override]  transformers reads the class from here
    supports_gradient_checkpointing = True
    _no_split_modules = ["VaswaniEncoderLayer", "VaswaniDecoderLayer"]  # where a model is spread over devices
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _can_compile_fullgraph = True

    def train(self, mode: bool = True) -> "VaswaniPreTrainedModel":
        """Set the mode of all modules, or of none: those in int8, which refuse to be trained, are asked first."""
        for module in self.modules():
            if isinstance(module, Int8Linear):
                module.train(mode)
        return super().train(mode)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.d_model**-0.5)
            if module.padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, VaswaniLayer):
            attention = module.self_attn
            _init_as_one_matrix(attention.q_proj, attention.k_proj, attention.v_proj)
            if isinstance(module, VaswaniDecoderLayer):
                _init_as_one_matrix(module.encoder_attn.k_proj, module.encoder_attn.v_proj)
        elif isinstance(module, VaswaniForConditionalGeneration):
            init.normal_(module.lm_head.weight, std=self.config.d_model**-0.5)


def _init_as_one_matrix(*projections: nn.Linear) -> None:
    """Glorot-initialize projections of one input as the single fused matrix that the original code had."""
    fan_out = sum(projection.out_features for projection in projections)
    bound = math.sqrt(6 / (projections[0].in_features + fan_out))
    for projection in projections:
        init.uniform_(projection.weight, -bound, bound)


class VaswaniStack(VaswaniPreTrainedModel):
    """The common part of both stacks: embeddings times sqrt(d_model) plus positions, with dropout (3.4, 3.5, 5.4)."""

    def __init__(self, config: VaswaniConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model, config.pad_token_id)
        if config.position_embedding_type == "learned":
            self.embed_positions = nn.Embedding(config.max_position_embeddings, config.d_model)
        else:
            self.embed_positions = VaswaniSinusoidalPositionalEmbedding(config.d_model)
        self.gradient_checkpointing = False

    def self_attention_mask(
        self, create: Callable, attention_mask: torch.Tensor | None, inputs_embeds: torch.Tensor, **arguments: Any
    ) -> Any:
        """Return what self-attention takes as its mask: that of transformers' `create`, with the band if there is one.

        With "sdpa", restricted attention takes the (B, S) mask: of the band it makes by itself as much as it needs.
        """
        arguments |= {"config": self.config, "inputs_embeds": inputs_embeds, "attention_mask": attention_mask}
        restriction = self.config.attention_restriction
        if restriction is None:
            return create(**arguments)
        attention_function(self.config, restriction)  # refuses a back end before a mask is made for it
        if attention_mask is not None and attention_mask.dim() != 2:
            raise ValueError(
                f"attention_restriction={restriction} does not go together with an attention_mask of shape "
                f"{tuple(attention_mask.shape)}: that must be (batch, length), 1 for each real token"
            )
        if self.config._attn_implementation == "sdpa":
            return None if attention_mask is None else attention_mask.to(inputs_embeds.device, torch.bool)
        return create(**arguments, and_mask_function=band(restriction, is_causal=create is create_causal_mask))

    def embed(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        """Look up (B, T) ids unless (B, T, D) embeddings are given, and scale them: section 3.4."""
        return self.embed_ids(input_ids, inputs_embeds) * math.sqrt(self.config.d_model)

    def add_positions(self, inputs_embeds: torch.Tensor, past_length: int | torch.Tensor = 0) -> torch.Tensor:
        """Add positions to (B, T, D) scaled embeddings: sections 3.5 and 5.4."""
        positions = self.positions(inputs_embeds.shape[1], inputs_embeds.device, past_length)
        return dropout(inputs_embeds + positions.to(inputs_embeds.dtype), self.config.dropout, self.training)

    def positions(self, length: int, device: torch.device, past_length: int | torch.Tensor = 0) -> torch.Tensor:
        """Return the (T, D) encodings of `length` positions behind the first `past_length`: section 3.5."""
        # A compiled graph cannot branch on a length that a static cache holds as a tensor.
        if not is_torchdynamo_compiling():
            self.check_length(past_length + length)
        return self.embed_positions(torch.arange(length, device=device) + past_length)

    def check_length(self, length: int | torch.Tensor) -> None:
        """Raise a ValueError if positions are learned, and not of so long a sequence."""
        rows = self.config.max_position_embeddings
        if self.config.position_embedding_type == "learned" and length > rows:
            raise ValueError(
                f"a sequence of {length} tokens is longer than max_position_embeddings={rows}, "
                "the rows of the learned position table"
            )


class VaswaniEncoder(VaswaniStack):
    """N encoder layers over embedded source tokens (section 3.1, Figure 1 left)."""

    _can_record_outputs = {"hidden_states": VaswaniEncoderLayer, "attentions": VaswaniAttention}

    def __init__(self, config: VaswaniConfig):
        super().__init__(config)
        self.layers = nn.ModuleList([VaswaniEncoderLayer(config) for _ in range(config.encoder_layers)])
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Encode (B, S) ids, or (B, S, D) embeddings, into (B, S, D); `attention_mask` (B, S) is 1 for real tokens."""
        inputs_embeds = self.embed(input_ids, inputs_embeds)
        attention_mask = self.self_attention_mask(create_bidirectional_mask, attention_mask, inputs_embeds)
        hidden_states = self.add_positions(inputs_embeds)
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask, **kwargs)
        return BaseModelOutput(last_hidden_state=hidden_states)


class VaswaniDecoder(VaswaniStack):
    """N decoder layers over embedded target tokens and the encoder's output (section 3.1, Figure 1 right)."""

    _can_record_outputs = {
        "hidden_states": VaswaniDecoderLayer,
        "attentions": OutputRecorder(VaswaniAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(VaswaniAttention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: VaswaniConfig):
        super().__init__(config)
        self.layers = nn.ModuleList([VaswaniDecoderLayer(config, index) for index in range(config.decoder_layers)])
        self.post_init()

    @takes_cache
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode (B, T) ids or (B, T, D) embeddings into (B, T, D), attending to (B, S, D) `encoder_hidden_states`."""
        inputs_embeds = self.embed(input_ids, inputs_embeds)
        if use_cache and past_key_values is None:
            past_key_values = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        past_length = 0 if past_key_values is None else past_key_values.get_seq_length()
        if attention_mask is None and not is_torchdynamo_compiling():
            batch_size, length = inputs_embeds.shape[:2]
            attention_mask = torch.ones(batch_size, past_length + length, device=inputs_embeds.device)
        self_attention_cache = past_key_values
        if isinstance(past_key_values, EncoderDecoderCache):
            self_attention_cache = past_key_values.self_attention_cache
        causal_mask = self.self_attention_mask(
            create_causal_mask, attention_mask, inputs_embeds, **{CACHE: self_attention_cache}
        )
        encoder_attention_mask = create_bidirectional_mask(
            config=self.config,
            inputs_embeds=inputs_embeds,
            attention_mask=encoder_attention_mask,
            encoder_hidden_states=encoder_hidden_states,
        )
        hidden_states = self.add_positions(inputs_embeds, past_length)
        for layer in self.layers:
            # The encoder's output is a positional argument: gradient checkpointing passes no gradients to keywords.
            hidden_states = layer(
                hidden_states,
                causal_mask,
                encoder_hidden_states,
                encoder_attention_mask=encoder_attention_mask,
                **{CACHE: past_key_values},  # by which name checkpointing takes it away
                **kwargs,
            )
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=hidden_states, **{CACHE: past_key_values})


class VaswaniModel(VaswaniPreTrainedModel, TranslatorModel):
    """Encoder and decoder without the pre-softmax projection: Figure 1 up to "Linear"."""

    _tied_weights_keys = {
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
    }

    def __init__(self, config: VaswaniConfig):
        super().__init__(config)
        self.shared = nn.Embedding(config.vocab_size, config.d_model, config.pad_token_id)
        self.encoder = VaswaniEncoder(config)
        self.decoder = VaswaniDecoder(config)
        self.post_init()

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Make `value` the embedding of both stacks, and the shared matrix."""
        super().set_input_embeddings(value)
        self.shared = value


class VaswaniForConditionalGeneration(VaswaniPreTrainedModel, TranslatorForConditionalGeneration):
    """The Transformer with its pre-softmax projection, the same matrix as both embeddings: section 3.4."""

    _tied_weights_keys = {
        "lm_head.weight": "model.shared.weight",
        "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
    }

    def __init__(self, config: VaswaniConfig):
        super().__init__(config, VaswaniModel(config), bias=config.lm_head_bias)
        self.post_init()

    def fused(self, compile_config: CompileConfig | None) -> Fused | None:
        """Return what lies between the matrix products, compiled on a CPU where no module was changed.

        On a GPU it is as written, and whole steps are recorded.
        """
        if compile_config is None:
            return AS_WRITTEN
        is_default = isinstance(compile_config, CompileConfig) and compile_config == CompileConfig()
        if not is_default or self.device.type not in ("cpu", "cuda") or not is_as_written(self, self.model.decoder):
            return None
        return compiled() if self.device.type == "cpu" else RECORDED

    def decoder_state(self, num_beams: int, model_kwargs: dict[str, Any], fused: Fused = AS_WRITTEN) -> DecoderState:
        """Return a state that gives the logits of the model's own methods faster, where none of them was changed."""
        if not is_as_written(self, self.model.decoder):
            return super().decoder_state(num_beams, model_kwargs)
        states, mask = model_kwargs["encoder_outputs"][0][::num_beams], model_kwargs.get("attention_mask")
        mask = None if mask is None else mask[::num_beams].to(self.device)
        if fused.record is not None and self.config.attention_restriction is None:
            with suppress(torch.OutOfMemoryError):  # a recording has more room than is needed at once
                return RecordedState(self, states, mask, num_beams, fused.record)
        return IncrementalState(self, states, mask, num_beams, fused)

    def encode_source(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, fused: Fused = AS_WRITTEN
    ) -> BaseModelOutput | None:
        """Encode without padding, on a CPU, where that gives what the encoder's own methods would give."""
        is_possible = self.device.type == "cpu" and self.config.attention_restriction is None
        if not is_possible or self.get_encoder() is not self.model.encoder:  # somebody's own method returns another
            return None
        if not is_as_written(self, self.model.encoder):
            return None
        return BaseModelOutput(last_hidden_state=encode(self.model.encoder, input_ids, attention_mask, fused))

    def quantize(self) -> "VaswaniForConditionalGeneration":
        """Put int8 in the place of all matrices, for translation on a CPU: see `int8_vaswani`.

        Returns
        -------
        VaswaniForConditionalGeneration
            This model, which can then be neither trained nor saved.

        Raises
        ------
        Int8IsMissing
            If the CPU or torch cannot.
        ValueError
            If the model is not on a CPU, has adapters, or is in int8 already.
        """
        quantize(self)
        return self

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """Save as every model of transformers.

        Raises
        ------
        ValueError
            If the model is in int8.
        """
        if is_quantized(self):
            raise ValueError("a model in int8 cannot be saved: save it before quantize(), which takes a second")
        return super().save_pretrained(*args, **kwargs)

    def create_masks_for_generate(self, attention_mask: torch.Tensor | None, **arguments: Any) -> Any:
        """Return the decoder's mask for a step with a static cache; called by transformers' `generate`."""
        if self.config.attention_restriction is None:
            return create_masks_for_generate(attention_mask=attention_mask, **arguments)
        return attention_mask  # the decoder makes of it what it needs


register_modules(
    VaswaniForConditionalGeneration,
    VaswaniModel,
    VaswaniEncoder,
    VaswaniEncoderLayer,
    VaswaniDecoder,
    VaswaniDecoderLayer,
    VaswaniAttention,
    Int8Embedding,
    Int8Linear,
    VaswaniSinusoidalPositionalEmbedding,
)

__all__ = ["VaswaniForConditionalGeneration", "VaswaniModel", "VaswaniPreTrainedModel"]
