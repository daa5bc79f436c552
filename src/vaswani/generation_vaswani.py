"""Decoding as in section 6.1: what a call of `generate` asks for, and which search does it.

`VaswaniGenerationMixin.generate` runs the searches of `search_vaswani.py` where it can, and leaves everything else to
transformers.
"""

import copy
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation import GenerationMixin
from transformers.utils import logging

from .search_vaswani import beam_search, greedy_search


logger = logging.get_logger(__name__)

# Settings by which transformers' own beam search is asked for: its length penalty, its stop rule.
THEIR_BEAM_SEARCH = ("length_penalty", "early_stopping")
# Settings that our searches do not know; what is None, False or 0 asks for nothing.
NOT_OURS = (
    "do_sample", "custom_generate", "assistant_model", "prompt_lookup_num_tokens", "streamer", "stopping_criteria",
    "stop_strings", "max_time", "negative_prompt_ids", "guidance_scale", "cache_implementation", "past_key_values",
    "decoder_attention_mask", "decoder_inputs_embeds", "output_attentions", "output_hidden_states", "synced_gpus",
    "token_healing", "low_memory", "penalty_alpha", "dola_layers", "constraints", "force_words_ids", "num_beam_groups",
    "diversity_penalty",
)  # fmt: skip
POSITIONAL = tuple(inspect.signature(GenerationMixin.generate).parameters)[3:]


class VaswaniGenerationMixin(GenerationMixin):
    """`generate()` with the paper's decoding."""

    config: Any

    @torch.no_grad()
    def generate(
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Generate as transformers does, and with the paper's beam search where `length_penalty_alpha` is set.

        Parameters
        ----------
        inputs, generation_config, *args, **kwargs
            As for every model of transformers. Settings come from the call, else from the call's
            `generation_config`, else from the model's.
        length_penalty_alpha : float, default: the model's generation config
            The paper's alpha (section 6.1: 0.6): beam search divides log-probabilities by `length_penalty`, and ends
            a sentence when its best live hypothesis could not beat its worst finished one, even at the best penalty
            within reach. None, or one of transformers' `length_penalty` and `early_stopping`, asks for
            transformers' beam search.
        extra_target_tokens : int, default: the model's generation config
            Tokens by which a translation may be longer than its source, ``</s>`` counted on both sides (section 6.1:
            50). Gives way to `max_new_tokens` and `max_length`.

        Returns
        -------
        Tensor of shape (B * num_return_sequences, T), or a ModelOutput
            With ``return_dict_in_generate=True`` beam search returns `sequences_scores`, log-probabilities divided by
            their penalty, and, if asked for, `scores` and `logits` of every step.

        Raises
        ------
        ValueError
            If settings contradict each other or are out of their range.
        """
        kwargs = dict(zip(POSITIONAL, args, strict=False)) | kwargs
        settings = Settings(kwargs, generation_config, self.generation_config)
        search, alpha = choose_search(self, settings)
        changes: dict[str, Any] = {}
        banned = [] if self.config.pad_token_id is None else [self.config.pad_token_id]
        suppressed = list(settings.get("suppress_tokens") or [])
        if not set(banned) <= {*suppressed, *settings.ends()}:
            # Its row of the softmax is zero, so its logit is 0: it could well be the highest.
            changes["suppress_tokens"] = [*suppressed, *banned]
        extra = settings.extra_target_tokens()
        if extra is not None:
            changes["max_new_tokens"] = source_length(inputs, kwargs) + extra
        for name in ("length_penalty_alpha", "extra_target_tokens"):
            kwargs.pop(name, None)
        if generation_config is None:
            kwargs |= changes
        elif changes:
            generation_config = copy.deepcopy(generation_config)
            generation_config.update(**changes)
        if search is not None:
            only_bans = not kwargs.get("logits_processor")
            kwargs["custom_generate"] = functools.partial(search, alpha=alpha, extra=extra, only_bans=only_bans)
        return super().generate(inputs, generation_config, **kwargs)


def source_length(inputs: torch.Tensor | None, kwargs: dict[str, Any]) -> int:
    """Return S of whatever stands for the source in a call of `generate`."""
    for source in (inputs, kwargs.get("input_ids"), kwargs.get("inputs_embeds")):
        if source is not None:
            return source.shape[1]
    return kwargs["encoder_outputs"][0].shape[1] if kwargs.get("encoder_outputs") is not None else 1


class Settings:
    """The settings of one call: its own arguments, its `generation_config`, the model's, in this order."""

    def __init__(self, kwargs: dict[str, Any], given: GenerationConfig | None, default: GenerationConfig):
        self.levels: list[dict[str, Any]] = [kwargs, vars(given) if given is not None else {}, vars(default)]

    def get(self, name: str) -> Any:
        """Return the first value that is not None."""
        return next((level[name] for level in self.levels if level.get(name) is not None), None)

    def ends(self) -> list[int]:
        """Return the ids that end a sentence."""
        ends = self.get("eos_token_id")
        return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)

    def alpha(self) -> tuple[float | None, bool]:
        """Return `length_penalty_alpha`, None if transformers' penalty is asked for; and whether the call set it."""
        for number, level in enumerate(self.levels):
            theirs = [name for name in THEIR_BEAM_SEARCH if level.get(name) is not None]
            alpha = level.get("length_penalty_alpha")
            if alpha is not None and (
                isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha)
            ):
                raise ValueError(f"length_penalty_alpha={alpha!r} must be a number: the paper's is 0.6")
            if alpha is not None and theirs:
                raise ValueError(
                    f"length_penalty_alpha={alpha} and {theirs[0]}={level[theirs[0]]} contradict each other: the "
                    "first asks for the paper's beam search, the second for transformers'"
                )
            if theirs or (number == 0 and "length_penalty_alpha" in level) or alpha is not None:
                return alpha, number == 0
        return None, False

    def extra_target_tokens(self) -> int | None:
        """Return `extra_target_tokens`, None where a length is given in its place."""
        for level in self.levels:
            extra = level.get("extra_target_tokens")
            if extra is not None and (isinstance(extra, bool) or not isinstance(extra, int) or extra < 0):
                raise ValueError(f"extra_target_tokens={extra!r} must be a whole number, 0 or more")
            if level.get("max_new_tokens") is not None or level.get("max_length") is not None:
                return None
            if extra is not None:
                return extra
        return None


def choose_search(model: Any, settings: Settings) -> tuple[Callable | None, float | None]:
    """Return the search of this file that the settings ask for, with its alpha; None leaves it to transformers."""
    beams = settings.get("num_beams")
    if beams is not None and (isinstance(beams, bool) or not isinstance(beams, int) or beams < 1):
        raise ValueError(f"num_beams={beams!r} must be a whole number, 1 or more: 1 is greedy search")
    alpha, is_explicit = settings.alpha()
    foreign = [name for name in NOT_OURS if asks_for(name, settings.get(name))]
    if beams in (None, 1):
        if foreign or settings.get("return_dict_in_generate") or (settings.get("num_return_sequences") or 1) > 1:
            return None, None
        return greedy_search, None
    if alpha is None:
        return None, None
    if foreign and is_explicit:
        raise ValueError(
            f"length_penalty_alpha={alpha} does not go together with {foreign[0]}: leave one of them out, or give "
            "length_penalty_alpha=None for transformers' beam search"
        )
    if foreign:
        logger.warning_once(
            f"{foreign[0]} is left to transformers' beam search, whose length penalty is not the paper's; "
            "num_beams=1 does without a penalty"
        )
        return None, None
    return beam_search, float(alpha)


def asks_for(name: str, value: Any) -> bool:
    """Tell whether a setting's value is more than its neutral one."""
    if name in ("guidance_scale", "num_beam_groups"):
        return value is not None and value != 1
    return value is not None and (isinstance(value, torch.Tensor) or bool(value))


__all__ = ["VaswaniGenerationMixin"]
