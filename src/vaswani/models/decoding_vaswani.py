"""The settings of decoding: from the call of `generate`, its generation config and the model's."""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import torch
from transformers import CompileConfig, GenerationConfig
from transformers.utils import logging


logger = logging.get_logger(__name__)

# Section 6.1; hub_configs/*/generation_config.json have the same.
PAPERS_DECODING = {"num_beams": 4, "length_penalty_alpha": 0.6, "extra_target_tokens": 50}

# Beyond it, the length penalty of long outputs is no number any more; nobody wants a tenth of it.
MOST_ALPHA = 10
# The least that settings which count something may be.
LEAST = {"num_beams": 1, "num_return_sequences": 1} | dict.fromkeys(
    ("max_length", "max_new_tokens", "min_length", "min_new_tokens"), 0
)

# How like a setting's name another one has to be to look like a misspelling of it; those of older releases are not.
LIKE_ANOTHER = 0.85

# The values of transformers' settings that nobody set, as its trainer writes them into configs.
THEIR_DEFAULTS = GenerationConfig._get_default_generation_params() | {"guidance_scale": 1}
# The settings that ask for the rules of transformers' beam search: its length penalty, its stop rule.
THEIR_BEAM_SEARCH = ("length_penalty", "early_stopping")

# The settings that our searches obey, or that transformers turns into logits processors. A call that asks for anything
# else goes to transformers, so that no setting of a later release is ignored.
OURS = frozenset((
    *PAPERS_DECODING, *THEIR_BEAM_SEARCH, "num_return_sequences",
    "inputs", "input_ids", "inputs_embeds", "attention_mask", "encoder_outputs", "decoder_input_ids", "labels",
    "max_length", "max_new_tokens", "min_length", "min_new_tokens", "use_cache", "disable_compile",
    "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id",
    "return_dict_in_generate", "output_scores", "output_logits",
    "logits_processor", "prefix_allowed_tokens_fn", "suppress_tokens", "begin_suppress_tokens", "bad_words_ids",
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "repetition_penalty", "encoder_repetition_penalty",
    "forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty", "sequence_bias",
    "renormalize_logits", "remove_invalid_values", "watermarking_config", "compile_config",
))  # fmt: skip
# Settings that matter only beside another one: they say how to sample, to assist, to cache or to compile.
ABOUT_OTHERS = frozenset((
    "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff",
    "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold", "assistant_lookbehind",
    "target_lookbehind", "assistant_ensemble_weight", "max_matching_ngram_size", "speculation_type", "tokenizer",
    "assistant_tokenizer", "cache_config", "max_cache_len", "continuous_batching_config",
    "negative_prompt_attention_mask", "trust_remote_code", "transformers_version",
))  # fmt: skip


@dataclass(frozen=True)
class DecodingSettings:
    """The settings that count for one call of `generate`.

    The call's own arguments come first, then the `generation_config` that it is given, then the model's. But not every
    value in a config was set by somebody: transformers fills configs with its defaults, and `Seq2SeqTrainer` fills the
    model's own after each batch. So these defaults, where a config holds them, ask for nothing:

    =====================================  ===================================  ====================================
    setting                                in the call                          in a config
    =====================================  ===================================  ====================================
    `length_penalty`, `early_stopping`     transformers' rules                  the same, except for 1.0 and False
    `length_penalty_alpha`                 the paper's; None: transformers'     the same, unless the config also asks
                                                                                for transformers', with a warning
    `max_length`                           tokens, prefix included, unless a    the same, except for 20
                                           config has `max_new_tokens`
    `max_new_tokens`                       tokens, without prefix               the same, before any `max_length`
    `extra_target_tokens`                  more than the source's, or what      the same
                                           `min_new_tokens` asks for; None:
                                           transformers' limit
    all others                             its value                            the same, if the call says nothing
    =====================================  ===================================  ====================================

    If nobody set alpha or the extra tokens, they are the paper's (`PAPERS_DECODING`).

    Attributes
    ----------
    num_beams : int
    length_penalty_alpha : float or None
        None asks for the rules of transformers' beam search.
    extra_target_tokens : int or None
        None where a length is given instead.
    foreign : str or None
        A setting that our searches do not know.
    is_explicit : bool
        Whether the call itself sets `length_penalty_alpha`.
    returns_dict, returns_several : bool
        Whether a ModelOutput, or more than one translation of a sentence, is asked for.
    min_length, min_new_tokens : int
        The least tokens of an output, with its prefix or without.
    suppress_tokens, eos_token_ids, forced_eos_token_ids : tuple of int
    compile_config : CompileConfig or None
        What is to be compiled with, unless `disable_compile` says that nothing is.
    """

    num_beams: int
    length_penalty_alpha: float | None
    extra_target_tokens: int | None
    foreign: str | None
    is_explicit: bool
    returns_dict: bool
    returns_several: bool
    min_length: int
    min_new_tokens: int
    suppress_tokens: tuple[int, ...]
    eos_token_ids: tuple[int, ...]
    forced_eos_token_ids: tuple[int, ...]
    compile_config: CompileConfig | None

    @classmethod
    def read(
        cls,
        call: Mapping[str, Any],
        given: GenerationConfig | None,
        default: GenerationConfig,
        foreign: str | None = None,
    ) -> "DecodingSettings":
        """Read the settings of a call.

        Parameters
        ----------
        call : mapping
            The call's own arguments by name, inputs included.
        given : GenerationConfig or None
            The call's `generation_config`.
        default : GenerationConfig
            The model's.
        foreign : str or None, default=None
            The name of something else that rules our searches out, whatever the settings are.

        Raises
        ------
        ValueError
            If two of the call's own settings contradict each other, or one of ours is out of its range.
        """
        check_config(given)
        levels = [call, {} if given is None else wishes(given), wishes(default)]

        def get(name: str) -> Any:
            return next((level[name] for level in levels if level.get(name) is not None), None)

        for name, least in LEAST.items():
            _check_whole(name, get(name), least)
        penalty = get("length_penalty")
        if penalty is not None and not (_is_number(penalty) and math.isfinite(penalty)):
            raise ValueError(f"length_penalty={penalty!r} must be a finite number")
        suppressed = get("suppress_tokens")
        if suppressed is not None and not isinstance(suppressed, list | tuple):
            raise ValueError(f"suppress_tokens={suppressed!r} must be a list of ids")
        names = dict.fromkeys(name for level in levels for name in level)
        unknown = (name for name in names if name not in OURS | ABOUT_OTHERS)
        return cls(
            num_beams=get("num_beams") or 1,
            length_penalty_alpha=_read_alpha(levels),
            extra_target_tokens=_read_extra(levels),
            foreign=foreign or next((name for name in unknown if asks_for_something(name, get(name))), None),
            is_explicit="length_penalty_alpha" in call,
            returns_dict=bool(get("return_dict_in_generate")),
            returns_several=(get("num_return_sequences") or 1) > 1,
            min_length=get("min_length") or 0,
            min_new_tokens=get("min_new_tokens") or 0,
            suppress_tokens=() if suppressed is None else tuple(map(int, suppressed)),
            eos_token_ids=_read_ids(get("eos_token_id")),
            forced_eos_token_ids=_read_ids(get("forced_eos_token_id")),
            compile_config=None if get("disable_compile") else get("compile_config"),
        )


def check_config(given: Any) -> None:
    """Refuse what is given as a `generation_config` and is none.

    Raises
    ------
    ValueError
        If it is neither None nor a GenerationConfig.
    """
    if given is not None and not isinstance(given, GenerationConfig):
        raise ValueError(f"generation_config={given!r} must be a GenerationConfig, not a {type(given).__name__}")


def wishes(config: GenerationConfig) -> dict[str, Any]:
    """Return the settings that a config asks for: known to transformers or to us, and not merely filled in."""
    known = vars(GenerationConfig()).keys() | PAPERS_DECODING.keys()
    filled = (*THEIR_BEAM_SEARCH, "max_length")
    for name in vars(config).keys() - known:
        if nearest := difflib.get_close_matches(name, known, n=1, cutoff=LIKE_ANOTHER):
            logger.warning_once(f"{name} in a generation config is not known: the nearest setting is {nearest[0]}")
    return {
        name: value
        for name, value in vars(config).items()
        if name in known and not name.startswith("_") and not (name in filled and value == THEIR_DEFAULTS[name])
    }


def asks_for_something(name: str, value: Any) -> bool:
    """Tell whether a setting's value differs from those that change nothing."""
    if value is None or value is False or isinstance(value, torch.Tensor):
        return isinstance(value, torch.Tensor)
    is_empty = isinstance(value, list | tuple | dict) and not value
    return not is_empty and value != THEIR_DEFAULTS.get(name)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _read_alpha(levels: list[Mapping[str, Any]]) -> float | None:
    for number, level in enumerate(levels):
        alpha = level.get("length_penalty_alpha")
        if alpha is not None and not (_is_number(alpha) and abs(alpha) <= MOST_ALPHA):
            raise ValueError(
                f"length_penalty_alpha={alpha!r} must be a number from {-MOST_ALPHA} to {MOST_ALPHA}: "
                "the paper's is 0.6"
            )
        theirs = next((name for name in THEIR_BEAM_SEARCH if level.get(name) is not None), None)
        if alpha is not None and theirs is not None:
            both = f"length_penalty_alpha={alpha} and {theirs}={level[theirs]}"
            if number == 0:
                raise ValueError(
                    f"{both} contradict each other: the first asks for the paper's beam search, the second for "
                    "transformers'"
                )
            logger.warning_once(f"Of {both} in a generation config, the second counts: transformers' beam search runs")
        if theirs is not None:
            return None
        if "length_penalty_alpha" in level:
            return None if alpha is None else float(alpha)
    return PAPERS_DECODING["length_penalty_alpha"]


def _read_ids(ids: Any) -> tuple[int, ...]:
    return () if ids is None else tuple(torch.as_tensor(ids).flatten().tolist())


def _check_whole(name: str, value: Any, least: int) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, Integral) or value < least):
        raise ValueError(f"{name}={value!r} must be a whole number, {least} or more")


def _read_extra(levels: list[Mapping[str, Any]]) -> int | None:
    for level in levels:
        extra = level.get("extra_target_tokens")
        _check_whole("extra_target_tokens", extra, 0)
        if level.get("max_new_tokens") is not None or level.get("max_length") is not None:
            return None
        if "extra_target_tokens" in level:
            return extra
    return PAPERS_DECODING["extra_target_tokens"]


__all__ = ["PAPERS_DECODING", "DecodingSettings"]
