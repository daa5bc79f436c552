"""What all models here have in common: encoder before decoder, the projection and the loss.

The Transformer (`modeling_vaswani.py`) and its predecessors (`modeling_recurrent.py`, `modeling_convolutional.py`)
differ in their two stacks alone. Around them each is a model of transformers with `generate()` of
`generation_vaswani.py`.

Axis letters: see `modeling_vaswani.py`.
"""

from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.modeling_utils import PreTrainedModel
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs, can_return_tuple, logging

from .cache_vaswani import CACHE, takes_cache
from .configuration_vaswani import TranslatorConfig
from .generation_vaswani import VaswaniGenerationMixin
from .parsing_vaswani import ParsingPipeline  # noqa: F401  a saved folder has the files that this one imports
from .pipeline_vaswani import TranslationPipeline  # noqa: F401


logger = logging.get_logger(__name__)


def shift_tokens_right(labels: torch.Tensor, pad_token_id: int | None, decoder_start_token_id: int) -> torch.Tensor:
    """Turn targets into decoder inputs: "outputs (shifted right)" of Figure 1.

    Parameters
    ----------
    labels : Tensor of shape (B, T)
        Target ids; -100 where the loss ignores a position.
    pad_token_id : int
        Replaces -100.
    decoder_start_token_id : int
        Stands first in every row.

    Returns
    -------
    Tensor of shape (B, T)

    Raises
    ------
    ValueError
        If `pad_token_id` is None.
    """
    if pad_token_id is None:
        raise ValueError("pad_token_id=None in the config: it must be an id to replace ignored labels")
    start = labels.new_full((labels.shape[0], 1), decoder_start_token_id)
    shifted = torch.cat([start, labels[:, :-1]], dim=1)
    return shifted.masked_fill(shifted == -100, pad_token_id)


class TranslatorPreTrainedModel(PreTrainedModel):
    """The base of all models here."""

    config: TranslatorConfig
    base_model_prefix = "model"

    def __init__(self, config: TranslatorConfig, *args: Any, **kwargs: Any):
        config.validate_architecture()  # `from_pretrained` sets fields of a config that exists already
        super().__init__(config, *args, **kwargs)

    @property
    def dummy_inputs(self) -> dict[str, torch.Tensor]:
        """(1, 4) ids of either side, with which transformers' tools see whether a model works."""
        ids = torch.arange(min(4, self.config.vocab_size), device=self.device)[None]
        return {"input_ids": ids, "decoder_input_ids": ids}

    def embed_ids(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        """Look up (B, T) ids in `embed_tokens`, unless (B, T, D) embeddings are given.

        Raises
        ------
        ValueError
            If both or none are given.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(
                "exactly one of input_ids and inputs_embeds must be given to the encoder, and exactly one of "
                "decoder_input_ids and decoder_inputs_embeds (or labels) to the decoder"
            )
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
            if self.config.pad_token_id is not None:
                # The decoder's start is a zero vector, even if the softmax's row for <pad> is not.
                inputs_embeds = inputs_embeds.masked_fill((input_ids == self.config.pad_token_id)[..., None], 0)
        return inputs_embeds

    def _resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize as transformers does; where the config unties the embeddings, each keeps its own values."""
        model = self.base_model
        others = [(model.decoder, "embed_tokens"), *([(model, "shared")] if hasattr(model, "shared") else [])]
        matrices = [getattr(owner, name) for owner, name in others]
        resized = super()._resize_token_embeddings(*args, **kwargs)
        if not self.config.tie_word_embeddings:
            for (owner, name), matrix in zip(others, matrices, strict=True):
                setattr(owner, name, self._get_resized_embeddings(matrix, *args, **kwargs))
        types = resized.num_embeddings
        for name in ("pad_token_id", "decoder_start_token_id"):
            token = getattr(self.config, name)
            if token is not None and token >= types:
                logger.warning(f"config.{name}={token} must be set anew: the model has {types:,} types now")
        return resized


class TranslatorModel(TranslatorPreTrainedModel):
    """An encoder and a decoder, without the projection to the vocabulary. A subclass makes the two."""

    _auto_class = "AutoModel"
    encoder: nn.Module
    decoder: nn.Module

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the source embedding."""
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Make `value` the embedding of both stacks."""
        self.encoder.embed_tokens = self.decoder.embed_tokens = value

    def from_encoder(self, encoder_outputs: BaseModelOutput) -> dict[str, torch.Tensor | None]:
        """Return what the decoder takes of the encoder's output, as arguments of its `forward`."""
        return {"encoder_hidden_states": encoder_outputs.last_hidden_state}

    @takes_cache
    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: tuple[torch.Tensor] | BaseModelOutput | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        """Encode the source unless `encoder_outputs` are given, then decode.

        Parameters
        ----------
        input_ids, attention_mask : Tensor of shape (B, S)
            Source ids and 1 for each real token.
        decoder_input_ids, decoder_attention_mask : Tensor of shape (B, T)
            Target ids shifted right, and 1 for each real token; T = 1 when decoding from a cache.
        encoder_outputs : BaseModelOutput or tuple
            Whose first element is the encoder's (B, S, D) output.
        past_key_values : Cache
            What earlier steps left; `cache` is another name of it.
        inputs_embeds, decoder_inputs_embeds : Tensor of shape (B, S, D) and (B, T, D)
            In place of ids; of the Transformer not yet scaled by sqrt(d_model).
        use_cache : bool
            Whether to return it.

        Returns
        -------
        Seq2SeqModelOutput
            `last_hidden_state` of shape (B, T, D), and whatever else was asked for.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                inputs_embeds=inputs_embeds,
                return_dict=True,
                **kwargs,
            )
        elif not isinstance(encoder_outputs, ModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs[:3])
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **self.from_encoder(encoder_outputs),
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            **{CACHE: getattr(decoder_outputs, CACHE)},
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


class TranslatorForConditionalGeneration(TranslatorPreTrainedModel, VaswaniGenerationMixin):
    """A `TranslatorModel` with its projection to the vocabulary, a loss, and `generate()`.

    Parameters
    ----------
    config : TranslatorConfig
    model : TranslatorModel
    bias : bool, default=False
        Whether the projection has a bias.
    """

    _auto_class = "AutoModelForSeq2SeqLM"

    def __init__(self, config: TranslatorConfig, model: TranslatorModel, bias: bool = False):
        super().__init__(config)
        self.model = model
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=bias)
        # The row of <pad> is zero and stays zero, so its logit is 0, which may well be the highest: rule <pad> out.
        if config.pad_token_id is not None:
            self.generation_config.suppress_tokens = [config.pad_token_id]
        # transformers rebuilds a generation config that it believes derived from the model's, and would drop our
        # fields.
        self.generation_config._from_model_config = False

    @takes_cache
    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: tuple[torch.Tensor] | BaseModelOutput | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """Return logits and, where `labels` are given, the cross-entropy; other arguments are `TranslatorModel`'s.

        Parameters
        ----------
        labels : Tensor of shape (B, T)
            Target ids, -100 where ignored. They become the decoder's input, shifted right, unless that is given too.
        **kwargs
            With `num_items_in_batch` the loss is the sum over target tokens divided by it (what Trainer sends for
            gradient accumulation), otherwise the mean. The loss is not smoothed: that is the training loop's choice.

        Returns
        -------
        Seq2SeqLMOutput
            `logits` of shape (B, T, V), `loss` a scalar, and whatever else was asked for.
        """
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs: Seq2SeqModelOutput = self.model(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **kwargs,
        )
        logits = self.lm_head(outputs.last_hidden_state)
        loss = None
        if labels is not None:
            # Given `labels` alone, transformers' loss for this class name would shift them: they are in place already.
            loss = self.loss_function(
                logits=logits,
                labels=labels,
                vocab_size=self.config.vocab_size,
                shift_labels=labels.contiguous(),
                **kwargs,
            )
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            **{CACHE: getattr(outputs, CACHE)},
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Shift (B, T) labels right; called by transformers' `DataCollatorForSeq2Seq`."""
        return shift_tokens_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)


__all__ = [
    "TranslatorForConditionalGeneration",
    "TranslatorModel",
    "TranslatorPreTrainedModel",
    "shift_tokens_right",
]
