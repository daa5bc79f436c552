"""The recurrent encoder-decoder, which the Transformer replaced: without attention, and with it.

Without, the encoder's last state is all that the decoder knows of the source (Sutskever et al. 2014, Cho et al. 2014).
With attention, each step also looks back at all of the encoder's states (Bahdanau et al. 2015, Luong et al. 2015):

    e_i = score(s_t, h_i)    a = softmax(e)    c_t = sum_i a_i h_i    s~_t = tanh(W_c [c_t; s_t] + b_c)
    y_t = softmax(W_y s~_t + b_y)

s_t is the decoder's state, h_1 to h_S are the encoder's. Neither c_t nor s~_t goes back into the recurrence (Luong et
al. call that input feeding, Bahdanau et al. do it too), so that all positions of a known target are one call of
PyTorch's recurrent layers.

What else deviates: the decoder starts from a zero vector, as the Transformer's does here; the source is not reversed
as by Sutskever et al. (the second direction of a bidirectional encoder reads it from its end); Cho et al. gave the
encoder's last state to every step, not only to the first; the initialization is another one, see
`RecurrentPreTrainedModel`.

Axis letters: see `modeling_vaswani.py`; L is the number of layers.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.masking_utils import create_bidirectional_mask
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
from .predecessor_vaswani import (
    PredecessorForConditionalGeneration,
    StateCache,
    check_right_padded,
    state_cache,
)
from .translator_vaswani import TranslatorModel, TranslatorPreTrainedModel


@strict
class RecurrentConfig(TranslatorConfig):
    """Hyper-parameters of a recurrent model; the defaults are those of Luong et al. (2015) for EN-DE.

    Parameters
    ----------
    vocab_size : int, default=37000
        V, entries of the vocabulary that both languages share.
    d_model : int, default=1000
        Width of embeddings and states. Must be even if the encoder is bidirectional.
    num_layers : int, default=4
        L, layers of encoder and decoder; each of the decoder's starts from the last state of the encoder's.
    rnn_type : {"lstm", "gru"}, default="lstm"
        Sutskever et al. and Luong et al. have LSTMs, Cho et al. and Bahdanau et al. GRUs.
    bidirectional : bool, default=False
        Whether the encoder reads in both directions, with half the width in each.
    attention : {"none", "dot", "scaled_dot", "additive"}, default="dot"
        score(s, h): s . h (Luong et al.), s . h / sqrt(d_model) (as in the Transformer), v . tanh(W s + U h) (Bahdanau
        et al.). "none" leaves attention out, and with it the layer s~.
    dropout : float, default=0.2
        On embeddings, between layers and on the decoder's output, in [0, 1); never from one position to the next.
    tie_word_embeddings : bool, default=False
        One matrix for both embeddings and the projection. The originals had one each.
    source_lang, target_lang, pad_token_id, eos_token_id, bos_token_id, decoder_start_token_id, use_cache
        As in `VaswaniConfig`.

    Raises
    ------
    ValueError
        If a field is out of its range; the message names field, value and what is allowed.
    """

    model_type = "recurrent"
    attribute_map = {"hidden_size": "d_model", "num_hidden_layers": "num_layers"}
    _auto_map = {
        "AutoConfig": "modeling_recurrent.RecurrentConfig",
        "AutoModel": "modeling_recurrent.RecurrentModel",
        "AutoModelForSeq2SeqLM": "modeling_recurrent.RecurrentForConditionalGeneration",
    }

    d_model: int = 1000
    num_layers: int = 4
    rnn_type: Literal["lstm", "gru"] = "lstm"
    bidirectional: bool = False
    attention: Literal["none", "dot", "scaled_dot", "additive"] = "dot"
    dropout: float | int = 0.2
    tie_word_embeddings: bool = False

    def validate_architecture(self):
        """Check the ranges of all fields; part of the validation that transformers runs on construction and saving."""
        super().validate_architecture()
        self.check_at_least_1("num_layers")
        if self.bidirectional and self.d_model % 2:
            raise ValueError(f"d_model={self.d_model} must be even if bidirectional: each direction has half of it")


@dataclass
class RecurrentEncoderOutput(BaseModelOutput):
    """The encoder's output, and the states in which its layers end.

    Attributes
    ----------
    last_states : Tensor of shape (B, L, N, D)
        N = 2 of an LSTM, hidden and cell state; N = 1 of a GRU.
    """

    last_states: torch.Tensor | None = None


class RecurrentLayer(nn.Module):
    """One layer of recurrence over all positions: PyTorch's own kernels.

    Parameters
    ----------
    config : RecurrentConfig
    bidirectional : bool
    """

    def __init__(self, config: RecurrentConfig, bidirectional: bool = False):
        super().__init__()
        kind = nn.LSTM if config.rnn_type == "lstm" else nn.GRU
        width = config.d_model // 2 if bidirectional else config.d_model
        self.rnn = kind(config.d_model, width, batch_first=True, bidirectional=bidirectional)

    def forward(
        self, hidden_states: torch.Tensor, lengths: torch.Tensor | None = None, states: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the (B, T, D) output of every position and the (B, N, D) states after the last.

        Parameters
        ----------
        hidden_states : Tensor of shape (B, T, D)
        lengths : Tensor of shape (B,), or None
            Of the sequences, on the CPU. What stands behind them is not read, and its output is zero.
        states : Tensor of shape (B, N, D), or None
            To start from, instead of zeros.
        """
        start = None
        if states is not None:
            parts = [part[None].contiguous() for part in states.unbind(1)]
            start = tuple(parts) if len(parts) == 2 else parts[0]
        if lengths is None:
            output, end = self.rnn(hidden_states, start)
        else:
            packed = pack_padded_sequence(hidden_states, lengths, batch_first=True, enforce_sorted=False)
            output, end = self.rnn(packed, start)
            output, _ = pad_packed_sequence(output, batch_first=True, total_length=hidden_states.shape[1])
        ends = end if isinstance(end, tuple) else (end,)
        # (directions, B, width) -> (B, D)
        return output, torch.stack([part.transpose(0, 1).flatten(1) for part in ends], dim=1)


class RecurrentAttention(nn.Module):
    """Attention of the decoder's states over those of the encoder: "dot", "scaled_dot" or "additive"."""

    def __init__(self, config: RecurrentConfig):
        super().__init__()
        self.config = config
        self.is_causal = False
        self.scaling = config.d_model**-0.5 if config.attention == "scaled_dot" else 1.0
        self.is_additive = config.attention == "additive"
        if self.is_additive:
            self.query_proj = nn.Linear(config.d_model, config.d_model, bias=False)  # W
            self.key_proj = nn.Linear(config.d_model, config.d_model, bias=False)  # U
            self.score_proj = nn.Linear(config.d_model, 1, bias=False)  # v

    def keys(self, encoder_hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the part of the score that depends on the (B, S, D) encoder's states alone."""
        return self.key_proj(encoder_hidden_states) if self.is_additive else encoder_hidden_states

    def forward(
        self,
        hidden_states: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the contexts c, (B, T, D), and where they are known the weights a, (B, 1, T, S).

        Parameters
        ----------
        hidden_states : Tensor of shape (B, T, D)
            The decoder's states s.
        keys : Tensor of shape (B, S, D)
            Of `keys`.
        values : Tensor of shape (B, S, D)
            The encoder's states h.
        attention_mask : Tensor of shape (B, 1, 1 or T, S), or None
            As transformers makes it for `attn_implementation`.
        """
        if self.is_additive:
            scores = self.score_proj(torch.tanh(self.query_proj(hidden_states)[:, :, None] + keys[:, None]))
            weights = masked(scores[..., 0][:, None], attention_mask).softmax(-1)
            return torch.matmul(weights[:, 0], values), weights
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        query, key, value = (states[:, None] for states in (hidden_states, keys, values))  # one head
        context, weights = attention(self, query, key, value, attention_mask, scaling=self.scaling, **kwargs)
        return context.flatten(2), weights


def masked(scores: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """Lower the scores of illegal positions, by a mask of booleans (True is legal) or one to be added."""
    if attention_mask is None:
        return scores
    if attention_mask.dtype == torch.bool:
        return scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    return scores + attention_mask


class RecurrentPreTrainedModel(TranslatorPreTrainedModel):
    """The base of the recurrent models, and their initialization.

    Notes
    -----
    Initialization is the Transformer's here: matrices Glorot uniform, in a recurrence each gate's by itself; biases 0;
    embeddings and an untied projection N(0, 1/d_model), ``<pad>``'s row zero. Sutskever et al. and Luong et al. drew
    everything uniformly from [-0.08, 0.08] and [-0.1, 0.1], which suits their width of 1000: narrower models learn
    several times more slowly from it.
    """

    config: RecurrentConfig  # ty: ignore[incompatible-mutable-override]  transformers reads the class from here
    _supports_sdpa = True
    _no_split_modules = ["RecurrentLayer", "RecurrentAttention"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.RNNBase | nn.Linear):
            for name, weight in module.named_parameters(recurse=False):
                if "bias" in name:
                    init.zeros_(weight)
                elif weight.shape[0] == self.config.vocab_size:
                    init.normal_(weight, std=self.config.d_model**-0.5)
                else:
                    gates = weight.shape[0] // module.hidden_size if isinstance(module, nn.RNNBase) else 1
                    bound = math.sqrt(6 / (weight.shape[0] // gates + weight.shape[1]))
                    init.uniform_(weight, -bound, bound)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.d_model**-0.5)
            if not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[self.config.pad_token_id])


class RecurrentEncoder(RecurrentPreTrainedModel):
    """Recurrent layers over embedded source tokens."""

    _can_record_outputs = {"hidden_states": RecurrentLayer}

    def __init__(self, config: RecurrentConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model, config.pad_token_id)
        self.layers = nn.ModuleList([RecurrentLayer(config, config.bidirectional) for _ in range(config.num_layers)])
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> RecurrentEncoderOutput:
        """Encode (B, S) ids, or (B, S, D) embeddings; padding, where `attention_mask` (B, S) is 0, is not read."""
        hidden_states = dropout(self.embed_ids(input_ids, inputs_embeds), self.config.dropout, self.training)
        lengths = order = None
        if attention_mask is not None:
            lengths = attention_mask.sum(1).clamp(min=1).cpu()
            order = attention_mask.logical_not().long().argsort(dim=1, stable=True)  # real tokens first
            hidden_states = take(hidden_states, order)
        last_states = []
        for index, layer in enumerate(self.layers):
            if index:
                hidden_states = dropout(hidden_states, self.config.dropout, self.training)
            hidden_states, states = layer(hidden_states, lengths)
            last_states.append(states)
        if order is not None:
            hidden_states = take(hidden_states, order.argsort(dim=1))
        return RecurrentEncoderOutput(last_hidden_state=hidden_states, last_states=torch.stack(last_states, dim=1))


def take(hidden_states: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return the states, (B, S, D), of these (B, S) positions."""
    return hidden_states.gather(1, positions[..., None].expand_as(hidden_states))


class RecurrentDecoder(RecurrentPreTrainedModel):
    """Recurrent layers over embedded target tokens, which start from the encoder's last states, and attention."""

    _can_record_outputs = {
        "hidden_states": RecurrentLayer,
        "cross_attentions": OutputRecorder(RecurrentAttention, index=1),
    }

    def __init__(self, config: RecurrentConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model, config.pad_token_id)
        self.layers = nn.ModuleList([RecurrentLayer(config) for _ in range(config.num_layers)])
        if config.attention != "none":
            self.attention = RecurrentAttention(config)
            self.combine = nn.Linear(2 * config.d_model, config.d_model)  # W_c, b_c
        self.post_init()

    @takes_cache
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_last_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode (B, T) ids or (B, T, D) embeddings into (B, T, D).

        Parameters
        ----------
        input_ids, attention_mask, inputs_embeds
            Tokens or their embeddings; the (B, T) mask may have zeros behind real tokens only.
        encoder_hidden_states, encoder_last_states, encoder_attention_mask
            The encoder's (B, S, D) and (B, L, N, D) output, and 1 for each real token of the source.
        past_key_values : StateCache, optional
            To continue from the states of an earlier call.
        use_cache : bool, optional
            Whether to return the states for the next one.
        """
        check_right_padded("decoder_attention_mask", attention_mask)
        cache = state_cache(past_key_values, use_cache)
        hidden_states = dropout(self.embed_ids(input_ids, inputs_embeds), self.config.dropout, self.training)
        states = encoder_last_states if cache is None or not cache.state else cache.state["states"]
        last_states = []
        for index, layer in enumerate(self.layers):
            if index:
                hidden_states = dropout(hidden_states, self.config.dropout, self.training)
            hidden_states, after = layer(hidden_states, states=states[:, index].to(hidden_states.dtype))
            last_states.append(after)
        if cache is not None:
            cache.state["states"] = torch.stack(last_states, dim=1)
            cache.length += hidden_states.shape[1]
        if self.config.attention != "none":
            hidden_states = self._attend(hidden_states, encoder_hidden_states, encoder_attention_mask, cache, **kwargs)
        hidden_states = dropout(hidden_states, self.config.dropout, self.training)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=hidden_states, **{CACHE: cache})

    def _attend(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        encoder_attention_mask: torch.Tensor | None,
        cache: StateCache | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Return s~ = tanh(W_c [c; s] + b_c) for the (B, T, D) states s."""
        mask = create_bidirectional_mask(
            config=self.config,
            inputs_embeds=hidden_states,
            attention_mask=encoder_attention_mask,
            encoder_hidden_states=encoder_hidden_states,
        )
        keys = None if cache is None else cache.source.get("keys")
        if keys is None:
            keys = self.attention.keys(encoder_hidden_states)
        if cache is not None and self.attention.is_additive:
            cache.source["keys"] = keys
        context, _ = self.attention(hidden_states, keys, encoder_hidden_states, mask, **kwargs)
        return torch.tanh(self.combine(torch.cat([context, hidden_states], dim=-1)))


class RecurrentModel(RecurrentPreTrainedModel, TranslatorModel):
    """Encoder and decoder without the projection to the vocabulary."""

    _tied_weights_keys = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"}

    def __init__(self, config: RecurrentConfig):
        super().__init__(config)
        self.encoder = RecurrentEncoder(config)
        self.decoder = RecurrentDecoder(config)
        self.post_init()

    def from_encoder(self, encoder_outputs: BaseModelOutput) -> dict[str, torch.Tensor | None]:
        """Return the encoder's output and its last states.

        Raises
        ------
        ValueError
            If the output is not that of a recurrent encoder.
        """
        last_states = getattr(encoder_outputs, "last_states", None)
        if last_states is None:
            raise ValueError(
                f"encoder_outputs is a {type(encoder_outputs).__name__} without last_states: it must be what the "
                "encoder of this model returned"
            )
        return super().from_encoder(encoder_outputs) | {"encoder_last_states": last_states}


class RecurrentForConditionalGeneration(RecurrentPreTrainedModel, PredecessorForConditionalGeneration):
    """The recurrent encoder-decoder with its projection to the vocabulary, which has a bias."""

    _tied_weights_keys = {
        "lm_head.weight": "model.encoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight": "model.encoder.embed_tokens.weight",
    }

    def __init__(self, config: RecurrentConfig):
        super().__init__(config, RecurrentModel(config), bias=True)
        self.post_init()


__all__ = ["RecurrentConfig", "RecurrentForConditionalGeneration", "RecurrentModel", "RecurrentPreTrainedModel"]
