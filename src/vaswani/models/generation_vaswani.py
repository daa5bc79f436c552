"""Decoding as in section 6.1, through `generate`.

`VaswaniGenerationMixin.generate` runs the searches of `search_vaswani.py` where they do what the call asks for
(`decoding_vaswani.py`), and leaves everything else to transformers.

Axis letters: see `modeling_vaswani.py`.
"""

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import CompileConfig, GenerationConfig, LogitsProcessorList
from transformers.generation import GenerationMixin
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import logging

from .allowed_tokens_vaswani import AllowedTokens
from .cache_vaswani import CACHE
from .decoding_vaswani import PAPERS_DECODING, DecodingSettings, check_config, wishes
from .fusion_vaswani import AS_WRITTEN, Fused
from .scorer_vaswani import EndAtLimit, ForcedEndAtLimit, Scorer
from .search_vaswani import DecoderState, PapersRules, SearchState, TransformersRules, beam_search, greedy_search


logger = logging.get_logger(__name__)

# The methods of transformers' search loops. Our searches call none of them, so a model that overrides one is left to
# transformers' loops, where the override counts.
LOOPS = (
    "_sample", "_beam_search", "_prefill", "_has_unfinished_sequences", "_get_stopping_criteria",
    "_get_top_k_continuations", "_get_running_beams_for_next_iteration", "_update_finished_beams",
    "_check_early_stop_heuristic", "_beam_search_has_unfinished_sequences", "_optimize_model_for_decode",
    "_valid_auto_compile_criteria",
)  # fmt: skip
MOST_TOKENS = 2**31  # of any output: more is meant as no limit, and might be more than torch can count
POSITIONAL = tuple(inspect.signature(GenerationMixin.generate).parameters)[3:]


class VaswaniGenerationMixin(GenerationMixin):
    """`generate()` with the paper's decoding."""

    config: Any

    @torch.compiler.disable
    @torch.no_grad()
    def generate(
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Generate as transformers does, except that several beams mean the paper's beam search.

        Parameters
        ----------
        inputs, generation_config, *args, **kwargs
            As for every model of transformers. `DecodingSettings` says which of several settings counts.
        length_penalty_alpha : float, default=0.6
            The paper's alpha (section 6.1): beam search divides log-probabilities by `length_penalty`, and ends a
            sentence when its best live hypothesis could not beat the finished ones that are asked for, even at the
            best penalty within reach. None, or one of transformers' `length_penalty` and `early_stopping`, asks for
            what transformers' beam search finds: our own search finds it too, faster.
        extra_target_tokens : int, default=50
            Tokens by which a translation may be longer than its source, ``</s>`` counted on both sides (section 6.1).
            Gives way to `max_new_tokens` and `max_length`, and to `min_new_tokens` where that is more. A learned table
            of positions limits the length too.
        compile_config : CompileConfig, optional
            On a CPU, a Transformer's searches compile what lies between its matrix products: `fusion_vaswani`. That
            takes some seconds once a process, of which a cache on disk saves most the next time. On a GPU by CUDA they
            record whole steps, unless attention is restricted, and replay them: `graphs_vaswani`. Other models, and
            settings other than transformers' defaults, are left to transformers.

        Returns
        -------
        Tensor of shape (B * num_return_sequences, T), or a ModelOutput
            With ``return_dict_in_generate=True`` beam search returns `sequences_scores`, log-probabilities divided by
            their penalty, and, if asked for, `scores` and `logits` of every step; the cache only where it is left to
            transformers. Hypotheses beyond those that are possible repeat the last one, with a score of -inf.

        Raises
        ------
        ValueError
            If settings contradict each other or are out of their range, or the source is no batch.
        CannotCompile
            If there is nothing to compile with.
        """
        kwargs = dict(zip(POSITIONAL, args, strict=False)) | kwargs
        if kwargs.get("synced_gpus") is None and weights_are_sharded(self):
            kwargs["synced_gpus"] = True
        settings, fused = self._settings(kwargs, generation_config)
        changes: dict[str, Any] = {}
        banned = [] if self.config.pad_token_id is None else [self.config.pad_token_id]
        if not set(banned) <= {*settings.suppress_tokens, *settings.eos_token_ids}:
            # Its row of the softmax matrix is zero, so its logit is 0, which could well be the highest.
            changes["suppress_tokens"] = [*settings.suppress_tokens, *banned]
        padding = [id for id in banned if id not in settings.eos_token_ids]
        limits = self._limits(settings, source_lengths(inputs, kwargs, *padding), kwargs, generation_config)
        if limits is not None:
            changes["max_length"] = int(limits.max())
            if any(getattr(config, "max_new_tokens", None) for config in (generation_config, self.generation_config)):
                kwargs["max_new_tokens"] = None  # of a config that counts for less; transformers would prefer it
            if settings.forced_eos_token_ids:
                forced = ForcedEndAtLimit(settings.forced_eos_token_ids, limits)
                kwargs["logits_processor"] = [*(kwargs.get("logits_processor") or []), forced]
        search = choose_search(settings)
        if search is not None:
            only_bans = all(type(given) is AllowedTokens for given in kwargs.get("logits_processor") or [])
            kwargs |= self._encoded(inputs, kwargs, fused)
            kwargs["custom_generate"] = functools.partial(
                run_search, search=search, limits=limits, only_bans=only_bans, fused=fused
            )
        elif limits is not None:
            kwargs["stopping_criteria"] = [*(kwargs.get("stopping_criteria") or []), EndAtLimit(limits)]
        for name in ("length_penalty_alpha", "extra_target_tokens"):
            kwargs.pop(name, None)
        if generation_config is not None and changes:
            generation_config = copy.deepcopy(generation_config)
            generation_config.update(**changes)
            changes = {name: value for name, value in changes.items() if name in kwargs}  # they override the config
        return super().generate(inputs, generation_config, **kwargs | changes)

    def has_own_search(self, generation_config: GenerationConfig | None = None, **call: Any) -> bool:
        """Tell whether `generate`, called with these arguments, runs a search of ours or leaves it to transformers.

        Raises
        ------
        ValueError
            As `generate` does.
        """
        return choose_search(self._settings(call, generation_config)[0]) is not None

    def _settings(
        self, call: Mapping[str, Any], generation_config: GenerationConfig | None
    ) -> tuple[DecodingSettings, Fused]:
        """Return the settings of a call of `generate`, and what it compiles."""
        settings = DecodingSettings.read(call, generation_config, self.generation_config, changed_loop(self))
        fused = self.fused(settings.compile_config)
        if fused is None:
            return dataclasses.replace(settings, foreign=settings.foreign or "compile_config"), AS_WRITTEN
        return settings, fused

    def _limits(
        self,
        settings: DecodingSettings,
        lengths: torch.Tensor,
        call: Mapping[str, Any],
        generation_config: GenerationConfig | None,
    ) -> torch.Tensor | None:
        """Return the most tokens, (B,), of the outputs for sources of (B,) lengths, prefix included."""
        if settings.extra_target_tokens is None:
            return None
        configs = generation_config, self.generation_config, self.config
        starts = (getattr(config, "decoder_start_token_id", None) for config in configs)
        start = next((id for id in (call.get("decoder_start_token_id"), *starts) if id is not None), None)
        prefix = prefix_length(call.get("decoder_input_ids"), start)
        least = max(settings.min_new_tokens, settings.min_length - prefix)
        outputs = (
            output_limit(self.config, length, settings.extra_target_tokens, prefix, least)
            for length in lengths.tolist()
        )
        return torch.tensor([prefix + limit for limit in outputs])

    def fused(self, compile_config: CompileConfig | None) -> Fused | None:
        """Return what lies between the matrix products of the model, or None if it cannot be compiled as is asked."""
        return AS_WRITTEN if compile_config is None else None

    def encode_source(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, fused: Fused = AS_WRITTEN
    ) -> BaseModelOutput | None:
        """Encode (B, S) ids; a model that knows a faster way than its encoder's `forward` returns what that gives."""
        return None

    def _encoded(self, inputs: torch.Tensor | None, kwargs: Mapping[str, Any], fused: Fused) -> dict[str, Any]:
        """Return `encoder_outputs` where there is a faster way to them."""
        ids, mask = kwargs.get("input_ids") if inputs is None else inputs, kwargs.get("attention_mask")
        others = (kwargs.get(name) for name in ("encoder_outputs", "inputs_embeds"))
        if ids is None or mask is None or mask.shape != ids.shape or any(other is not None for other in others):
            return {}
        encoded = self.encode_source(ids, mask, fused)
        return {} if encoded is None else {"encoder_outputs": encoded}

    def decoder_state(self, num_beams: int, model_kwargs: dict[str, Any], fused: Fused = AS_WRITTEN) -> DecoderState:
        """Return the state in which a search starts to decode; a model that knows a faster one returns that.

        Parameters
        ----------
        num_beams : int
            K, hypotheses of each sentence.
        model_kwargs : dict
            The model's inputs except the decoder's ids, R rows of each: `encoder_outputs`, `attention_mask`, ...
        fused : Fused
            What `self.fused` has returned.
        """
        return ModelState(self, model_kwargs)


def run_search(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: Any,
    generation_config: GenerationConfig,
    search: Callable[[SearchState], Any],
    limits: torch.Tensor | None,
    only_bans: bool,
    fused: Fused,
    **model_kwargs: Any,
) -> Any:
    """Run a search of ours on what transformers' `generate` has prepared: (R, P) `input_ids` and all that follows.

    `limits` are the most tokens of each sentence, (B,), prefix included; for `only_bans` see `Scorer`, for `fused`
    `decoder_state`.
    """
    num_beams, length = generation_config.num_beams or 1, input_ids.shape[1]
    for token in generation_config.suppress_tokens or []:
        if not 0 <= token < model.config.vocab_size:
            raise ValueError(f"suppress_tokens={token} must be an id from 0 to {model.config.vocab_size - 1}")
    limit = input_ids.new_full((len(input_ids) // num_beams,), min(generation_config.max_length - length, MOST_TOKENS))
    if limits is not None:
        limit = torch.minimum(limit, limits.to(limit) - length)
    for processor in logits_processor:
        if isinstance(processor, AllowedTokens):
            processor.check(model.config.vocab_size)
    scorer = Scorer(logits_processor, generation_config, input_ids, only_bans, fused.summarize)
    return search(SearchState(model.decoder_state(num_beams, model_kwargs, fused), scorer, limit, num_beams))


def max_positions(config: Any) -> int | None:
    """Return how many positions a model of any kind has a table for; sinusoids need none."""
    is_sinusoidal = getattr(config, "position_embedding_type", None) == "sinusoidal"
    return None if is_sinusoidal else getattr(config, "max_position_embeddings", None)


def output_limit(
    config: Any, source_length: int, extra_target_tokens: int, prefix_length: int = 1, least: int = 0
) -> int:
    """Return how many tokens may be generated for a source: its length + 50 in section 6.1, or the `least` asked for.

    Prefix and generated tokens must not outgrow the model's table of positions, if it has one.
    """
    limit = min(max(source_length + extra_target_tokens, least), MOST_TOKENS)
    positions = max_positions(config)
    return limit if positions is None else min(limit, max(1, positions - prefix_length))


def length_arguments(model: Any, source_length: int, call: Mapping[str, Any]) -> dict[str, int]:
    """Return the arguments of ``generate()`` that limit a translation as section 6.1 does, where nothing else does.

    Parameters
    ----------
    model : PreTrainedModel
        Of any kind. ``generate()`` of our own models decides by itself: for these there is nothing to add.
    source_length : int
        S, in tokens, ``</s>`` and padding included.
    call : mapping
        The arguments of ``generate()`` so far.

    Returns
    -------
    dict of str to int
        `max_new_tokens`, or nothing.
    """
    given, own = call.get("generation_config"), getattr(model, "generation_config", None)
    check_config(given)
    levels = [call, *(wishes(config) for config in (given, own) if config is not None)]
    is_limited = any(level.get(name) is not None for level in levels for name in ("max_length", "max_new_tokens"))
    if is_limited or hasattr(model, "decoder_state"):
        return {}
    return {"max_new_tokens": output_limit(model.config, source_length, PAPERS_DECODING["extra_target_tokens"])}


class ModelState:
    """The `DecoderState` of any model that transformers can search with: it calls the methods that transformers calls.

    It serves whatever changes these methods: adapters, quantized, sharded or offloaded weights, hooks, overrides.
    Sentences that were dropped are computed all the same, as nobody knows which of a model's inputs and caches are
    counted by rows; only their logits are left out.

    Parameters
    ----------
    model : PreTrainedModel
    model_kwargs : dict
        Its inputs except the decoder's ids, R rows of each: `encoder_outputs`, `attention_mask`, a cache, ...
    """

    def __init__(self, model: Any, model_kwargs: dict[str, Any]):
        self.model, self.model_kwargs = model, model_kwargs
        self.input_ids: torch.Tensor | None = None  # (R, T) of all sentences
        self.selected: torch.Tensor | None = None  # (B',) sentences not dropped; None where none is
        self.output_ids: torch.Tensor | None = None  # (N,) tokens whose logits are asked for; None where all are

    def step(self, tokens: torch.Tensor, parents: torch.Tensor | None) -> torch.Tensor:
        """Append (B', K, T) tokens to the hypotheses of (B', K) `parents`; return the logits of the next one."""
        num_beams, length = tokens.shape[1:]
        if self.selected is not None:
            tokens, parents = self._with_dropped(tokens, parents)
        is_first = self.input_ids is None
        if is_first:
            self.input_ids = tokens.flatten(0, 1)
        else:
            self._extend(tokens.flatten(0, 1), None if parents is None else rows_of(parents))
        uses_cache = self.model_kwargs.get("use_cache", True)
        inputs = self.model.prepare_inputs_for_generation(
            self.input_ids,
            next_sequence_length=length if uses_cache and not is_first else None,
            is_first_iteration=is_first,
            **self.model_kwargs,
        )
        outputs = self.model(**inputs, return_dict=True)
        self.model_kwargs = self.model._update_model_kwargs_for_generation(
            outputs, self.model_kwargs, is_encoder_decoder=True
        )
        logits = outputs.logits[:, -1].to(tokens.device)  # (R, V)
        logits = logits if self.output_ids is None else logits[:, self.output_ids]
        return logits if self.selected is None else logits.unflatten(0, (-1, num_beams))[self.selected].flatten(0, 1)

    def select(self, sentences: torch.Tensor) -> None:
        """Return the logits of the (B',) sentences alone."""
        self.selected = sentences if self.selected is None else self.selected[sentences]

    def cut_output(self, ids: torch.Tensor) -> None:
        """Return the logits of the tokens with these (N,) ids alone."""
        self.output_ids = ids

    def _with_dropped(
        self, tokens: torch.Tensor, parents: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return tokens and parents of all B sentences: a dropped hypothesis repeats its last token."""
        num_beams, length = tokens.shape[1:]
        all_tokens = self.input_ids[:, -1:].unflatten(0, (-1, num_beams)).repeat(1, 1, length)
        all_tokens[self.selected] = tokens
        if parents is None:
            return all_tokens, None
        all_parents = torch.arange(num_beams, device=parents.device).repeat(len(all_tokens), 1)
        all_parents[self.selected] = parents
        return all_tokens, all_parents

    def _extend(self, tokens: torch.Tensor, rows: torch.Tensor | None) -> None:
        """Append (R, T) tokens to what the (R,) rows hold."""
        if rows is not None:
            self.input_ids = self.input_ids[rows]
            cache = self.model_kwargs.get(CACHE)
            if hasattr(self.model, "_reorder_cache"):
                self.model_kwargs[CACHE] = self.model._reorder_cache(cache, rows)
            elif cache is not None:
                cache.reorder_cache(rows)
        self.input_ids = torch.cat([self.input_ids, tokens], dim=1)


def rows_of(parents: torch.Tensor) -> torch.Tensor:
    """Return the rows, (R,), of hypotheses that are counted (B, K) within their sentence."""
    return (parents + torch.arange(len(parents), device=parents.device)[:, None] * parents.shape[1]).flatten()


def weights_are_sharded(model: torch.nn.Module) -> bool:
    """Tell whether the weights are sharded over several processes, so that all must take the same steps."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return False
    from torch.distributed.tensor import DTensor  # which not every build of torch has

    is_sharded = is_deepspeed_zero3_enabled() or any(isinstance(weight, DTensor) for weight in model.parameters())
    return is_sharded and torch.distributed.get_world_size() > 1


def changed_loop(model: GenerationMixin) -> str | None:
    """Name the first method of transformers' loops that the model's class, or the model itself, overrides."""
    parts = (name for name in LOOPS if hasattr(GenerationMixin, name))
    return next(
        (
            name
            for name in parts
            if name in vars(model) or getattr(type(model), name) is not getattr(GenerationMixin, name)
        ),
        None,
    )


def source_lengths(
    inputs: torch.Tensor | None, kwargs: Mapping[str, Any], pad_token_id: int | None = None
) -> torch.Tensor:
    """Return the numbers of source tokens, (B,), in whichever form a call of `generate` gives the source.

    Without a mask, padding is what transformers takes for it: `pad_token_id`.

    Raises
    ------
    ValueError
        If it has no shape of a batch, or is an empty one.
    """
    ids = kwargs.get("input_ids") if inputs is None else inputs
    source, axes = (kwargs.get("inputs_embeds"), 3) if ids is None else (ids, 2)
    if source is not None and (source.dim() != axes or not source.numel()):
        names = "(sentences, tokens)" if axes == 2 else "(sentences, tokens, d_model)"
        raise ValueError(f"a source of shape {tuple(source.shape)} must have the shape {names}, none of them 0")
    if source is None and kwargs.get("encoder_outputs") is not None:
        source = kwargs["encoder_outputs"][0]
    if source is None:
        return torch.ones(1, dtype=torch.long)
    mask = kwargs.get("attention_mask")
    if mask is None and ids is not None and pad_token_id is not None:
        mask = ids != pad_token_id
    if mask is None or mask.shape != source.shape[:2]:
        return torch.full(source.shape[:1], source.shape[1])
    return mask.sum(1).long()


def prefix_length(prefix: torch.Tensor | None, start: Any) -> int:
    """Return P, the number of tokens before the generated ones: the decoder's start, or (B, P) that are given.

    Before these transformers puts the start, an id or one for each sentence, where no sentence has it.
    """
    if prefix is None:
        return 1
    is_without = start is not None and not (prefix[:, :1] == torch.as_tensor(start).to(prefix).view(-1, 1)).any()
    return prefix.shape[1] + int(is_without)


def choose_search(settings: DecodingSettings) -> Callable[[SearchState], Any] | None:
    """Return the search of ours that settings ask for, or None where it is transformers'."""
    alpha, foreign = settings.length_penalty_alpha, settings.foreign
    if settings.num_beams == 1:
        if settings.is_explicit and alpha is not None:
            logger.warning_once(f"length_penalty_alpha={alpha} has no effect with num_beams=1: it is for beam search")
        is_ours = foreign is None and not settings.returns_dict and not settings.returns_several
        return greedy_search if is_ours else None
    if alpha is None:
        return transformers_beam_search if foreign is None else None
    if foreign is None:
        return functools.partial(beam_search, rules=PapersRules(alpha))
    if settings.is_explicit:
        raise ValueError(
            f"length_penalty_alpha={alpha} does not go together with {foreign}: leave one of them out, or give "
            "length_penalty_alpha=None for transformers' beam search"
        )
    logger.warning_once(
        f"{foreign} is left to transformers' beam search, whose length penalty is not the paper's; num_beams=1 needs "
        "no penalty"
    )
    return None


def transformers_beam_search(state: SearchState) -> Any:
    """Find what transformers' beam search finds, but with `extra_target_tokens` within each sentence's own limit."""
    config = state.scorer.config
    length_penalty = 1.0 if config.length_penalty is None else config.length_penalty
    return beam_search(state, TransformersRules(length_penalty, config.early_stopping or False))


__all__ = ["VaswaniGenerationMixin", "length_arguments", "max_positions"]
