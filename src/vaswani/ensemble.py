"""Several models that translate as one: the probability of a token is the mean of theirs."""

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from transformers import CompileConfig, GenerationConfig
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from .errors import UserError
from .models.fusion_vaswani import AS_WRITTEN, Fused
from .models.generation_vaswani import VaswaniGenerationMixin, max_positions
from .models.modeling_vaswani import VaswaniForConditionalGeneration, VaswaniPreTrainedModel
from .models.search_vaswani import DecoderState
from .models.translator_vaswani import shift_tokens_right


# What must be the same in all members: a search counts their tokens and positions together.
SHARED = ("vocab_size", "pad_token_id", "eos_token_id", "decoder_start_token_id")
NEEDS_IDS = "an ensemble must be given input_ids, which each of its members encodes by itself"


class Ensemble(VaswaniPreTrainedModel, VaswaniGenerationMixin):
    """An ensemble of Transformers, for `generate` and for likelihoods; it can be neither trained nor saved.

    The paper's own results are of single models; Table 2 has ensembles of others beside them.

    Axis letters: see `modeling_vaswani.py`.

    Parameters
    ----------
    members : sequence of VaswaniForConditionalGeneration
        On one device. The first one's generation config counts.

    Raises
    ------
    UserError
        If there is none, or one of them is of another kind, or counts tokens or positions otherwise than the first.
    """

    def __init__(self, members: Sequence[VaswaniForConditionalGeneration]):
        if not members:
            raise UserError(f"members={members!r} of an ensemble must be one model or more")
        for number, member in enumerate(members, 1):
            if not isinstance(member, VaswaniForConditionalGeneration) or hasattr(member, "engine"):
                raise UserError(
                    f"model {number} of an ensemble is a {type(member).__name__}: all must be Transformers"
                )
            check_is_alike(members[0].config, member.config, number)
        super().__init__(members[0].config)
        self.members = nn.ModuleList(members)
        self.generation_config = members[0].generation_config
        self.eval()

    @torch.no_grad()
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        decoder_input_ids: torch.Tensor,
        encoder_outputs: None = None,  # transformers' `generate` looks here for what it may be given
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Return the (B, T, V) `logits` of the mean probabilities; `kwargs` as for the members, without a cache.

        Raises
        ------
        ValueError
            If anything else than logits is asked for.
        """
        if encoder_outputs is not None:
            raise ValueError(NEEDS_IDS)
        for name in ("labels", "output_hidden_states", "output_attentions"):
            if kwargs.get(name) is not None and kwargs[name] is not False:
                raise ValueError(f"{name} must be left out: an ensemble returns logits alone")
        if kwargs.get("return_dict") is False:
            raise ValueError("return_dict=False must be left out: an ensemble returns a Seq2SeqLMOutput")
        inputs = {"attention_mask": attention_mask, "decoder_input_ids": decoder_input_ids, **kwargs}
        return Seq2SeqLMOutput(logits=join(member(input_ids, **inputs).logits for member in self.members))

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Shift (B, T) labels right."""
        return shift_tokens_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)

    def generate(
        self, inputs: torch.Tensor | None = None, generation_config: GenerationConfig | None = None, **kwargs: Any
    ) -> Any:
        """Search as the members' own `generate` does.

        Raises
        ------
        ValueError
            If the call asks for anything else than our own searches, such as sampling or the scores of greedy search,
            or its source is not given as ids.
        """
        ids = kwargs.get("input_ids") if inputs is None else inputs
        if ids is None or kwargs.get("encoder_outputs") is not None:
            raise ValueError(NEEDS_IDS)
        if kwargs.get("attention_mask") is None:
            kwargs["attention_mask"] = (ids != self.config.pad_token_id).long()
        if not self.has_own_search(generation_config, **kwargs):
            raise ValueError(
                "an ensemble knows beam search, and greedy search without scores: all else takes one model"
            )
        return super().generate(inputs, generation_config, **kwargs)

    def fused(self, compile_config: CompileConfig | None) -> Fused | None:
        """Return what lies between the matrix products, as all members can have it."""
        found = [member.fused(compile_config) for member in self.members]
        return None if None in found else found[0]

    def encode_source(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, fused: Fused = AS_WRITTEN
    ) -> BaseModelOutput:
        """Encode by all members: their states are the output's hidden states."""
        states = []
        for member in self.members:
            encoded = member.encode_source(input_ids, attention_mask, fused)
            if encoded is None:
                encoded = member.get_encoder()(input_ids=input_ids, attention_mask=attention_mask)
            states.append(encoded.last_hidden_state)
        return BaseModelOutput(last_hidden_state=states[0], hidden_states=tuple(states))

    def decoder_state(self, num_beams: int, model_kwargs: dict[str, Any], fused: Fused = AS_WRITTEN) -> DecoderState:
        """Return an `EnsembleState`."""
        states, mask = [], model_kwargs["attention_mask"]
        for member, own in zip(self.members, model_kwargs["encoder_outputs"].hidden_states, strict=True):
            encoded = BaseModelOutput(last_hidden_state=own.repeat_interleave(num_beams, dim=0))
            inputs = {"encoder_outputs": encoded, "attention_mask": mask}  # not the one cache that is made for all
            states.append(member.decoder_state(num_beams, inputs, fused))
        return EnsembleState(states)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: an ensemble is no model of its own."""
        raise ValueError("an ensemble cannot be saved: save its members, or train one model on its translations")


class EnsembleState:
    """The `DecoderState` of an ensemble: those of its members, in step."""

    def __init__(self, states: Sequence[DecoderState]):
        self.states = states
        self.wanted: torch.Tensor | None = None  # ids of the only tokens whose logits are returned

    def step(self, tokens: torch.Tensor, parents: torch.Tensor | None) -> torch.Tensor:
        """Return the (R, V) logits of the mean probabilities of the next token."""
        logits = join(state.step(tokens, parents) for state in self.states)
        return logits if self.wanted is None else logits[:, self.wanted]

    def select(self, sentences: torch.Tensor) -> None:
        """Keep only the (B',) sentences."""
        for state in self.states:
            state.select(sentences)

    def cut_output(self, ids: torch.Tensor) -> None:
        """Return the logits of the tokens with these (N,) ids alone, from now on.

        The members compute all: the mean of what they give to a few tokens needs their sums over all of them.
        """
        self.wanted = ids


def join(logits: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the (..., V) logits whose softmax is the mean of the softmaxes of others."""
    return functools.reduce(torch.logaddexp, (own.float().log_softmax(-1) for own in logits))


def check_is_alike(first: Any, other: Any, number: int) -> None:
    """Refuse a member whose tokens or positions are counted otherwise than the first one's."""
    expected, found = (
        {name: getattr(config, name) for name in SHARED} | {"max_position_embeddings": max_positions(config)}
        for config in (first, other)
    )
    for name, value in found.items():
        if value != expected[name]:
            raise UserError(
                f"model {number} of an ensemble has {name}={value}, but the first has {expected[name]}: all must have "
                "the same tokens and positions"
            )
