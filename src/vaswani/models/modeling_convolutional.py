"""ConvS2S: "Convolutional Sequence to Sequence Learning" (Gehring et al. 2017), a predecessor of the Transformer.

Both stacks are convolutions. With p_j the position's embedding, e_j = Dropout(E[x_j] + p_j) is what goes into a stack.
A layer of kernel size k turns h into

    GLU(W [h_(i-k/2); ...; h_(i+k/2)] + b), where GLU([a; c]) = a * sigmoid(c)                      section 3.2

and adds its input; the decoder's window ends at i instead, so that it sees no later target. Each decoder layer attends
to the encoder's output z, of m real tokens, between the convolution and the addition:

    d_i = W h_i + b + g_i        g_i: the target's e_i                                            Eq. 1
    a_ij = exp(d_i z_j) / sum_t exp(d_i z_t)                                                        section 3.3
    c_i = sum_j a_ij (z_j + e_j)                                                                    Eq. 2

Where paper and original code (fairseq's `fconv`) differ, or the paper leaves something open, we follow the code:

- Every sum of two terms is multiplied by sqrt(1/2), also that in d_i and z_j + e_j; the paper says so of residual
  connections alone (section 3.4). c_i is multiplied by m sqrt(1/m), as in the paper.
- c_i goes through a linear map, back to the width of the layer, before it is added to h_i; in the paper it is added.
- Gradients that reach the encoder's layers from attention are divided by twice the number of attentions; in the paper
  by their number (section 3.4). Its embeddings get what comes through e_j in Eq. 2 undivided, as in both.

Four things deviate from both. One width, `d_model`, serves embeddings and the softmax's input; the original WMT14
models had 768 and 512. The softmax matrix is not weight-normalized. The decoder starts from a zero vector and not from
the embedding of ``</s>``, as our Transformer does. Kernel sizes must be odd.

Axis letters: see `modeling_vaswani.py`. C is the number of channels of a layer, k its kernel size.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from torch.nn.functional import glu, linear, pad
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention_vaswani import eager_attention_forward
from .cache_vaswani import CACHE, takes_cache
from .configuration_vaswani import TranslatorConfig
from .cpu_vaswani import dropout
from .predecessor_vaswani import PredecessorForConditionalGeneration, StateCache, check_right_padded, state_cache
from .translator_vaswani import TranslatorModel, TranslatorPreTrainedModel


SQRT_HALF = math.sqrt(0.5)  # keeps the variance of a sum of two independent terms: section 3.4


def _original_channels() -> list[int]:
    return [512] * 9 + [1024] * 4 + [2048] * 2


def _original_kernel_sizes() -> list[int]:
    return [3] * 13 + [1] * 2


@strict
class ConvolutionalConfig(TranslatorConfig):
    """Hyper-parameters of one model; the defaults are the original architecture for WMT14 English-German.

    Parameters
    ----------
    vocab_size : int, default=37000
        V, entries of the vocabulary that both languages share.
    d_model : int, default=768
        Width of every embedding, of the encoder's output and of what goes into the softmax. The original had 512 for
        the last.
    encoder_channels, decoder_channels : list of int
        Output channels of each layer. Default: 9 layers of 512, 4 of 1024, 2 of 2048.
    encoder_kernel_sizes, decoder_kernel_sizes : list of int
        k, width of each layer's convolution, odd. Default: 13 layers of 3, 2 of 1.
    max_position_embeddings : int, default=1024
        Rows of the tables of learned positions: the longest source and target, padding not counted.
    dropout : float, default=0.1
        On the sums of embedding and position, on the input of each convolution and on that of the softmax, in [0, 1).
    source_lang, target_lang : str or None, default=None
        The direction that the model was trained on, such as "en" and "de"; they name the pipeline's task.
    pad_token_id : int or None, default=None
        ``<pad>``. None means the last id, where our tokenizer puts it.
    eos_token_id : int or None, default=0
        ``</s>``, which ends every source and every target.
    bos_token_id : int or None, default=None
        Not used: the decoder starts from a zero vector.
    decoder_start_token_id : int or None, default=None
        Stands before the first target token. None means ``<pad>``, whose embedding is the zero vector.
    tie_word_embeddings : bool, default=False
        One matrix for both embeddings and the softmax. The original had three.
    use_cache : bool, default=True
        Whether decoding keeps the last k - 1 inputs of each convolution.

    Raises
    ------
    ValueError
        If a field is out of its range; the message names field, value and what is allowed.

    Examples
    --------
    >>> small = ConvolutionalConfig(d_model=256, encoder_channels=[256] * 4, encoder_kernel_sizes=[3] * 4,
    ...                             decoder_channels=[256] * 3, decoder_kernel_sizes=[3] * 3)
    >>> small.hidden_size
    256
    """

    model_type = "convolutional"
    attribute_map = {"hidden_size": "d_model"}
    _auto_map = {
        "AutoConfig": "modeling_convolutional.ConvolutionalConfig",
        "AutoModel": "modeling_convolutional.ConvolutionalModel",
        "AutoModelForSeq2SeqLM": "modeling_convolutional.ConvolutionalForConditionalGeneration",
    }

    d_model: int = 768
    encoder_channels: list[int] = field(default_factory=_original_channels)
    decoder_channels: list[int] = field(default_factory=_original_channels)
    encoder_kernel_sizes: list[int] = field(default_factory=_original_kernel_sizes)
    decoder_kernel_sizes: list[int] = field(default_factory=_original_kernel_sizes)
    max_position_embeddings: int = 1024
    tie_word_embeddings: bool = False

    def validate_architecture(self):
        """Check the ranges of all fields; part of the validation that transformers runs on construction and saving."""
        super().validate_architecture()
        self.check_at_least_1("max_position_embeddings")
        for stack in ("encoder", "decoder"):
            self._check_layers(f"{stack}_channels", f"{stack}_kernel_sizes")

    def _check_layers(self, channels_name: str, kernel_sizes_name: str) -> None:
        channels, kernel_sizes = getattr(self, channels_name), getattr(self, kernel_sizes_name)
        if not channels or min(channels) < 1:
            raise ValueError(f"{channels_name}={channels} must have one layer or more, of at least 1 channel each")
        if len(kernel_sizes) != len(channels):
            raise ValueError(
                f"{kernel_sizes_name}={kernel_sizes} must have an entry for each of the {len(channels)} layers in "
                f"{channels_name}"
            )
        if any(size < 1 or size % 2 == 0 for size in kernel_sizes):
            raise ValueError(f"{kernel_sizes_name}={kernel_sizes} must be odd numbers of at least 1")


class ConvolutionalLinear(nn.Module):
    """x W^T + b with weight normalization (Salimans & Kingma 2016): row i of W is g_i v_i / ||v_i||.

    Parameters
    ----------
    in_features, out_features : int
    growth : float, default=1.0
        By which it is to multiply the variance at the start: 4 before a GLU, which takes three quarters off
        (section 3.5).
    dropout : float, default=0.0
        That of its input, which multiplies the variance by 1 / (1 - dropout).

    Attributes
    ----------
    gain : Parameter of shape (out_features,)
        g. The original's names, `weight_g` and `weight_v`, are ones that transformers renames in checkpoints.
    direction : Parameter of shape (out_features, in_features)
        v.
    """

    def __init__(self, in_features: int, out_features: int, growth: float = 1.0, dropout: float = 0.0):
        super().__init__()
        self.gain = nn.Parameter(torch.empty(out_features))
        self.direction = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features))
        self.initial_std = math.sqrt(growth * (1 - dropout) / in_features)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Map (..., in_features) to (..., out_features)."""
        scale = self.gain / torch.linalg.vector_norm(self.direction, dim=1)
        return linear(states, self.direction * scale[:, None], self.bias)


def windows(states: torch.Tensor, kernel_size: int) -> torch.Tensor:
    """Return the k neighbours of each position side by side: (B, T + k - 1, C) to (B, T, k * C)."""
    length = states.shape[1] - kernel_size + 1
    return torch.cat([states[:, first : first + length] for first in range(kernel_size)], dim=-1)


def scale_gradient(states: torch.Tensor, factor: float) -> torch.Tensor:
    """Return `states` themselves, whose gradient is multiplied by `factor`."""
    return states.detach() + (states - states.detach()) * factor


class ConvolutionalAttention(nn.Module):
    """Attention of one decoder layer to the source: section 3.3."""

    def __init__(self, config: ConvolutionalConfig, channels: int):
        super().__init__()
        self.config = config
        self.is_causal = False
        self.in_proj = ConvolutionalLinear(channels, config.d_model)
        self.out_proj = ConvolutionalLinear(config.d_model, channels)

    def forward(
        self,
        hidden_states: torch.Tensor,
        target_embeds: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        attention_mask: torch.Tensor | None,
        source_lengths: torch.Tensor,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return h_i plus what it finds, (B, T, C), and, where the back end has them, the weights, (B, 1, T, S).

        Parameters
        ----------
        hidden_states : Tensor of shape (B, T, C)
            h, the output of the layer's convolution.
        target_embeds : Tensor of shape (B, T, D)
            g.
        keys, values : Tensor of shape (B, S, D)
            z and (z + e) sqrt(1/2).
        attention_mask : Tensor broadcastable to (B, 1, T, S), or None
        source_lengths : Tensor of shape (B,)
            m.
        """
        query = (self.in_proj(hidden_states) + target_embeds) * SQRT_HALF
        attention: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        found, weights = attention(
            self, query[:, None], keys[:, None], values[:, None], attention_mask, dropout=0.0, scaling=1.0, **kwargs
        )
        found = found.flatten(2) * source_lengths.to(found.dtype).sqrt()[:, None, None]  # m sqrt(1/m) = sqrt(m)
        return (self.out_proj(found) + hidden_states) * SQRT_HALF, weights


class ConvolutionalLayer(GradientCheckpointingLayer):
    """The common part of the layers of both stacks: a gated convolution and the residual connection, section 3.2."""

    def __init__(self, config: ConvolutionalConfig, in_channels: int, channels: int, kernel_size: int):
        super().__init__()
        self.dropout, self.kernel_size = config.dropout, kernel_size
        self.conv = ConvolutionalLinear(kernel_size * in_channels, 2 * channels, growth=4.0, dropout=config.dropout)
        self.residual = nn.Identity() if in_channels == channels else ConvolutionalLinear(in_channels, channels)

    def _convolve(self, states: torch.Tensor) -> torch.Tensor:
        """Return the gated convolution, (B, T, C), of (B, T + k - 1, C) states, dropped out already."""
        return glu(self.conv(windows(states, self.kernel_size)), dim=-1)

    def _drop(self, states: torch.Tensor) -> torch.Tensor:
        return dropout(states, self.dropout, self.training)


class ConvolutionalEncoderLayer(ConvolutionalLayer):
    """A convolution whose window has i in its middle."""

    def forward(self, hidden_states: torch.Tensor, is_padding: torch.Tensor | None = None) -> torch.Tensor:
        """Map (B, S, C) to the next layer's (B, S, C); `is_padding` (B, S, 1) is True where there is no token."""
        states = hidden_states if is_padding is None else hidden_states.masked_fill(is_padding, 0)
        half = self.kernel_size // 2
        convolved = self._convolve(pad(self._drop(states), (0, 0, half, half)))
        return (convolved + self.residual(hidden_states)) * SQRT_HALF


class ConvolutionalDecoderLayer(ConvolutionalLayer):
    """A convolution whose window ends at i, then attention to the source."""

    def __init__(self, config: ConvolutionalConfig, in_channels: int, channels: int, kernel_size: int, layer_idx: int):
        super().__init__(config, in_channels, channels, kernel_size)
        self.layer_idx = layer_idx
        self.encoder_attn = ConvolutionalAttention(config, channels)

    def forward(
        self,
        hidden_states: torch.Tensor,
        target_embeds: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        attention_mask: torch.Tensor | None,
        source_lengths: torch.Tensor,
        past_key_values: StateCache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """Map (B, T, C) to the next layer's (B, T, C); the other arguments are `ConvolutionalAttention`'s."""
        states = self._with_past(self._drop(hidden_states), past_key_values)
        attended, _ = self.encoder_attn(
            self._convolve(states), target_embeds, keys, values, attention_mask, source_lengths, **kwargs
        )
        return (attended + self.residual(hidden_states)) * SQRT_HALF

    def _with_past(self, states: torch.Tensor, past_key_values: StateCache | None) -> torch.Tensor:
        """Put the last k - 1 inputs, or zeros at the start, before (B, T, C) inputs; note the new last k - 1 ones."""
        name = f"layers.{self.layer_idx}"
        past = None if past_key_values is None else past_key_values.state.get(name)
        if past is None:
            past = states.new_zeros(len(states), self.kernel_size - 1, states.shape[2])
        extended = torch.cat([past, states], dim=1)
        if past_key_values is not None:
            past_key_values.state[name] = extended[:, states.shape[1] :]
        return extended


@dataclass
class ConvolutionalEncoderOutput(BaseModelOutput):
    """The encoder's output.

    Attributes
    ----------
    last_hidden_state : Tensor of shape (B, S, D)
        z, zero at padding: the keys of attention.
    hidden_states : tuple of Tensor
        If asked for: the input of the first layer, the output of each but the last, and z.
    value_states : Tensor of shape (B, S, D)
        (z + e) sqrt(1/2): the values of attention.
    """

    value_states: torch.Tensor | None = None


class ConvolutionalPreTrainedModel(TranslatorPreTrainedModel):
    """The base of all models here: the capabilities that transformers asks about, and the initialization.

    Notes
    -----
    Initialization is that of section 3.5 and of the original code; p is `dropout`, n the width of the input:

    ============================  =================================================================
    embeddings, positions         N(0, 0.1^2), ``<pad>``'s row zero
    convolutions                  v ~ N(0, 4 (1 - p) / n), where n = k C
    first map, softmax matrix     v ~ N(0, (1 - p) / n); the softmax matrix where it is not tied
    all other maps                v ~ N(0, 1 / n)
    g                             ||v||, so that W = v
    all biases                    0
    ============================  =================================================================
    """

    config: ConvolutionalConfig  # ty: ignore[incompatible-mutable-override]  transformers reads the class from here
    supports_gradient_checkpointing = True
    _no_split_modules = ["ConvolutionalEncoderLayer", "ConvolutionalDecoderLayer"]
    _supports_sdpa = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, ConvolutionalLinear):
            init.normal_(module.direction, std=module.initial_std)
            init.copy_(module.gain, torch.linalg.vector_norm(module.direction, dim=1))
            init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            init.normal_(module.weight, std=math.sqrt((1 - self.config.dropout) / module.in_features))
            init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=0.1)
            if module.padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[module.padding_idx])


class ConvolutionalStack(ConvolutionalPreTrainedModel):
    """The common part of both stacks: embeddings plus positions, and the maps into and out of the layers' widths."""

    def __init__(self, config: ConvolutionalConfig, channels: list[int]):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model, config.pad_token_id)
        self.embed_positions = nn.Embedding(config.max_position_embeddings, config.d_model)
        self.in_proj = ConvolutionalLinear(config.d_model, channels[0], dropout=config.dropout)
        self.out_proj = ConvolutionalLinear(channels[-1], config.d_model)
        self.gradient_checkpointing = False

    def add_positions(self, inputs_embeds: torch.Tensor, position_ids: torch.Tensor, length: int) -> torch.Tensor:
        """Return e: (B, T, D) embeddings plus those of the positions, (T,) or (B, T), with dropout (section 3.1)."""
        rows = self.config.max_position_embeddings
        if length > rows:
            raise ValueError(
                f"a sequence of {length} tokens is longer than max_position_embeddings={rows}, the rows of the "
                "learned position table"
            )
        return dropout(inputs_embeds + self.embed_positions(position_ids), self.config.dropout, self.training)


class ConvolutionalEncoder(ConvolutionalStack):
    """Convolutions over embedded source tokens: section 3.2."""

    _can_record_outputs = {"hidden_states": ConvolutionalEncoderLayer}

    def __init__(self, config: ConvolutionalConfig):
        super().__init__(config, config.encoder_channels)
        channels = config.encoder_channels
        self.layers = nn.ModuleList(
            ConvolutionalEncoderLayer(config, *sizes)
            for sizes in zip(channels[:1] + channels, channels, config.encoder_kernel_sizes, strict=False)
        )
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ConvolutionalEncoderOutput:
        """Encode (B, S) ids, or (B, S, D) embeddings, into (B, S, D); `attention_mask` (B, S) is 1 for real tokens.

        Positions count real tokens, so padding on either side changes nothing.
        """
        embeds = self.embed_with_positions(self.embed_ids(input_ids, inputs_embeds), attention_mask)
        is_padding = None if attention_mask is None else (attention_mask == 0)[..., None]
        hidden_states = self.in_proj(embeds)
        for layer in self.layers:
            hidden_states = layer(hidden_states, is_padding)
        keys = self.out_proj(hidden_states)
        if is_padding is not None:
            keys = keys.masked_fill(is_padding, 0)
        if self.training:
            # As many attentions as decoder layers send gradients here. Finite differences see what is not scaled.
            keys = scale_gradient(keys, 1 / (2 * len(self.config.decoder_channels)))
        return ConvolutionalEncoderOutput(last_hidden_state=keys, value_states=(keys + embeds) * SQRT_HALF)

    def embed_with_positions(self, inputs_embeds: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        """Add positions, counted over real tokens, to (B, S, D) embeddings."""
        length = inputs_embeds.shape[1]
        if attention_mask is None:
            return self.add_positions(inputs_embeds, torch.arange(length, device=inputs_embeds.device), length)
        position_ids = (attention_mask.long().cumsum(1) - 1).clamp(min=0)
        if length > self.config.max_position_embeddings:
            length = int(position_ids.max()) + 1  # without padding it may fit
        return self.add_positions(inputs_embeds, position_ids, length)


class ConvolutionalDecoder(ConvolutionalStack):
    """Convolutions over embedded target tokens, each with attention to the source: sections 3.2 and 3.3."""

    _can_record_outputs = {
        "hidden_states": ConvolutionalDecoderLayer,
        "cross_attentions": OutputRecorder(ConvolutionalAttention, index=1),
    }

    def __init__(self, config: ConvolutionalConfig):
        super().__init__(config, config.decoder_channels)
        channels = config.decoder_channels
        sizes = zip(channels[:1] + channels, channels, config.decoder_kernel_sizes, strict=False)
        self.layers = nn.ModuleList(
            ConvolutionalDecoderLayer(config, *size, layer_idx=index) for index, size in enumerate(sizes)
        )
        self.post_init()

    @takes_cache
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_value_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode (B, T) ids or (B, T, D) embeddings into (B, T, D), attending to the source.

        `encoder_hidden_states` and `encoder_value_states` are `last_hidden_state` and `value_states` of the encoder's
        output. `attention_mask` may be 0 behind real tokens only, where it changes nothing.
        """
        check_right_padded("decoder_attention_mask", attention_mask)
        is_checkpointing = self.gradient_checkpointing and self.training  # a layer that runs twice cannot keep a state
        cache = None if is_checkpointing else state_cache(past_key_values, use_cache)
        inputs_embeds = self.embed_ids(input_ids, inputs_embeds)
        past_length, length = 0 if cache is None else cache.length, inputs_embeds.shape[1]
        position_ids = torch.arange(past_length, past_length + length, device=inputs_embeds.device)
        target_embeds = self.add_positions(inputs_embeds, position_ids, past_length + length)
        source = (
            encoder_hidden_states,
            encoder_value_states,
            create_bidirectional_mask(
                config=self.config,
                inputs_embeds=inputs_embeds,
                attention_mask=encoder_attention_mask,
                encoder_hidden_states=encoder_hidden_states,
            ),
            source_lengths(encoder_hidden_states, encoder_attention_mask),
        )
        hidden_states = self.in_proj(target_embeds)
        for layer in self.layers:
            # All that has gradients is a positional argument: gradient checkpointing passes none to keywords.
            hidden_states = layer(hidden_states, target_embeds, *source, past_key_values=cache, **kwargs)
        if cache is not None:
            cache.length += length
        hidden_states = dropout(self.out_proj(hidden_states), self.config.dropout, self.training)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=hidden_states, **{CACHE: cache})


def source_lengths(states: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """Return m, (B,), the number of real tokens of each source."""
    return states.new_full((len(states),), states.shape[1]) if attention_mask is None else attention_mask.sum(1)


class ConvolutionalModel(ConvolutionalPreTrainedModel, TranslatorModel):
    """Encoder and decoder without the projection to the vocabulary."""

    _tied_weights_keys = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"}

    def __init__(self, config: ConvolutionalConfig):
        super().__init__(config)
        self.encoder = ConvolutionalEncoder(config)
        self.decoder = ConvolutionalDecoder(config)
        self.post_init()

    def from_encoder(self, encoder_outputs: BaseModelOutput) -> dict[str, torch.Tensor | None]:
        """Return keys and values of attention.

        Raises
        ------
        ValueError
            If there are no values, as in the output of another model's encoder.
        """
        value_states = getattr(encoder_outputs, "value_states", None)
        if value_states is None:
            raise ValueError(
                f"encoder_outputs, a {type(encoder_outputs).__name__}, has no value_states: it must be what this "
                "model's encoder returned"
            )
        return super().from_encoder(encoder_outputs) | {"encoder_value_states": value_states}


class ConvolutionalForConditionalGeneration(ConvolutionalPreTrainedModel, PredecessorForConditionalGeneration):
    """ConvS2S with its projection to the vocabulary, a loss, and `generate()`."""

    _tied_weights_keys = {
        "lm_head.weight": "model.encoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight": "model.encoder.embed_tokens.weight",
    }

    def __init__(self, config: ConvolutionalConfig):
        super().__init__(config, ConvolutionalModel(config), bias=True)
        self.post_init()


__all__ = ["ConvolutionalConfig", "ConvolutionalForConditionalGeneration", "ConvolutionalModel"]
