"""Decoding as in section 6.1: beam search with Wu et al.'s length penalty; and greedy search, as fast.

`VaswaniGenerationMixin.generate` runs the searches of this file where it can, and leaves everything else to
transformers.

Axis letters: B sentences, K hypotheses of a sentence (beams), R = B * K rows, T target tokens so far, S source
positions, V vocabulary.
"""

import copy
import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel
from transformers.generation import (
    GenerateBeamEncoderDecoderOutput,
    GenerationMixin,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    SuppressTokensLogitsProcessor,
)
from transformers.utils import logging

from .stepping_vaswani import make_steps


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
# What these rule out depends on the length alone, not on what was generated.
BANS = (SuppressTokensLogitsProcessor, MinLengthLogitsProcessor, MinNewTokensLengthLogitsProcessor)
POSITIONAL = tuple(inspect.signature(GenerationMixin.generate).parameters)[3:]


def length_penalty(length: torch.Tensor | int, alpha: float) -> Any:
    """Return lp(Y) = ((5 + |Y|) / 6)^alpha, by which log P(Y|X) is divided: Eq. 14 of Wu et al. 2016.

    |Y| counts ``</s>``, but neither the decoder's start nor a given prefix, as in the original code; the papers do not
    say. A hypothesis that was cut off before its ``</s>`` is divided by the penalty of its length too.
    """
    return ((5 + length) / 6) ** alpha


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


@dataclass
class Hypotheses:
    """Of each of B sentences, the K hypotheses that are alive and the K best that have finished, best first.

    A path holds two numbers for each generated token, the token and the row that it continued; -1 beyond its end.
    """

    sentence: torch.Tensor  # (B,) its place among all sentences
    limit: torch.Tensor  # (B,) the most tokens that it may have
    paths: torch.Tensor  # (B, K, T, 2)
    scores: torch.Tensor  # (B, K) log P(Y|X), -inf where there is none
    finished_paths: torch.Tensor  # (B, K, T, 2)
    finished_scores: torch.Tensor  # (B, K) log P(Y|X) / lp(Y), -inf where there is none

    @classmethod
    def start(cls, limit: torch.Tensor, num_beams: int) -> "Hypotheses":
        """Return one empty hypothesis for each of the sentences, whose limits are given."""
        nothing = torch.full((len(limit), num_beams), -math.inf, device=limit.device)
        one = nothing.clone()
        one[:, 0] = 0
        paths = limit.new_empty(len(limit), num_beams, 0, 2)
        return cls(torch.arange(len(limit), device=limit.device), limit, paths, one, paths, nothing)

    def select(self, sentences: torch.Tensor) -> "Hypotheses":
        """Return these sentences alone."""
        return Hypotheses(*(getattr(self, field.name)[sentences] for field in fields(self)))

    def grow(self, log_probs: torch.Tensor, tokens: torch.Tensor, ends: torch.Tensor, alpha: float) -> torch.Tensor:
        """Continue every hypothesis by (B, K, C) tokens; return the (B, K) slots that the live ones continued.

        As in the original code, the 2K best continuations of a sentence, among them those that end it, compete: those
        that end for a place among the K finished, the others for one among the K alive.
        """
        num_beams, choices = tokens.shape[1:]
        totals = (self.scores[..., None] + log_probs).flatten(1)
        # More than one token may end a sentence: K that do not are always left.
        totals, chosen = totals.topk(min(max(2, 1 + len(ends)) * num_beams, totals.shape[1]))
        parents, tokens = chosen // choices, tokens.flatten(1).gather(1, chosen)
        rows = parents + num_beams * self.sentence[:, None]
        paths = torch.cat([take(self.paths, parents), torch.stack([tokens, rows], dim=-1)[:, :, None]], dim=2)
        has_ended = torch.isin(tokens, ends)

        penalized = totals / length_penalty(paths.shape[2], alpha)
        finished_scores = torch.cat([self.finished_scores, penalized.masked_fill(~has_ended, -math.inf)], dim=1)
        finished_paths = torch.cat([pad(self.finished_paths, (0, 0, 0, 1), value=-1), paths], dim=1)
        self.finished_scores, best = finished_scores.topk(num_beams)
        self.finished_paths = take(finished_paths, best)

        self.scores, best = totals.masked_fill(has_ended, -math.inf).topk(num_beams)
        self.paths = take(paths, best)
        return parents.gather(1, best)

    def are_over(self, alpha: float, wanted: int) -> torch.Tensor:
        """Tell for each sentence whether its `wanted` best hypotheses are found.

        They are when the best live hypothesis, at the best penalty that it could reach, cannot beat the worst finished
        one: the rule of the original code, but that it applied it to a whole batch, and that at least `wanted`
        have to be finished where it asked for one.
        """
        length = self.paths.shape[2]
        reachable = torch.stack([self.limit, torch.full_like(self.limit, length + 1)])
        bound = self.scores[:, 0] / length_penalty(reachable, alpha).amax(0)
        exists = self.finished_scores > -math.inf
        worst = self.finished_scores.masked_fill(~exists, math.inf).amin(1)
        is_decided = exists[:, wanted - 1] & (worst > bound)
        return is_decided | (length >= self.limit) | (self.scores[:, 0] == -math.inf)

    def best(self, alpha: float, wanted: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return sentence (B,), paths (B, wanted, T, 2) and scores (B, wanted), best first.

        Hypotheses that were cut off stand behind all that finished, as in the original code, which used them only
        where none had.
        """
        count = (self.finished_scores > -math.inf).sum(1, keepdim=True)
        order = torch.arange(wanted, device=count.device).expand(len(count), -1)
        order = order.where(order < count, order - count + self.scores.shape[1])
        scores = torch.cat([self.finished_scores, self.scores / length_penalty(self.paths.shape[2], alpha)], dim=1)
        paths = torch.cat([self.finished_paths, self.paths], dim=1)
        return self.sentence, take(paths, order), scores.gather(1, order)


def take(paths: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Pick from (B, N, T, 2) paths those that (B, M) `chosen` names."""
    return paths.gather(1, chosen[..., None, None].expand(-1, -1, *paths.shape[2:]))


class Scorer:
    """From logits to the best continuations of each row, ruling out what the settings rule out.

    Parameters
    ----------
    processors : LogitsProcessorList
        What transformers made of the settings.
    config : GenerationConfig
    prefix : Tensor of shape (R, P)
        What stands before the generated tokens.
    only_bans : bool
        Whether the processors may be only those that the settings ask for.
    """

    def __init__(
        self, processors: LogitsProcessorList, config: GenerationConfig, prefix: torch.Tensor, only_bans: bool
    ):
        self.processors, self.config, self.prefix = processors, config, prefix
        dictionary = config.return_dict_in_generate
        self.scores: list | None = [] if dictionary and config.output_scores else None
        self.logits: list | None = [] if dictionary and config.output_logits else None
        # Else each step has to see all sentences, and to see its probabilities in full.
        self.is_plain = only_bans and self.scores is None and self.logits is None
        self.is_plain = self.is_plain and all(type(processor) in BANS for processor in processors)
        self.probabilities = prefix.new_empty(0, dtype=torch.float32)
        ends = config._eos_token_tensor
        self.ends = prefix.new_empty(0) if ends is None else ends.to(prefix.device)

    def continuations(
        self, logits: torch.Tensor, tokens: torch.Tensor, count: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the log-probabilities and ids, (R, count) each, of what continues the (R, T) tokens best."""
        count = min(count, logits.shape[-1])
        if not self.is_plain:
            return self._process(logits, tokens, log_probs=True).topk(count)
        # log P(y) = logit(y) - logit(best) + log P(best): no pass over the vocabulary but the softmax's own.
        self.probabilities = self.probabilities.to(logits).resize_(logits.shape)
        torch.softmax(logits, -1, out=self.probabilities)
        scores, ids = self._ban(logits, tokens).topk(count)
        scores, best = scores.float(), self.probabilities.gather(1, ids[:, :1]).float()
        return scores - scores[:, :1] + best.log(), ids

    def best(self, logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the ids, (R,), of what continues the (R, T) tokens best."""
        scores = self._ban(logits, tokens) if self.is_plain else self._process(logits, tokens, log_probs=False)
        return scores.max(-1).indices  # several times as fast as argmax on a processor

    def _ban(self, logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        banned = list(self.config.suppress_tokens or [])
        length = self.prefix.shape[1] + tokens.shape[1]
        if length < (self.config.min_length or 0) or tokens.shape[1] < (self.config.min_new_tokens or 0):
            banned += self.ends.tolist()
        logits[:, banned] = -math.inf
        return logits

    def _process(self, logits: torch.Tensor, tokens: torch.Tensor, log_probs: bool) -> torch.Tensor:
        logits = logits.to(torch.float32, copy=True)  # the next step writes over them
        if self.logits is not None:
            self.logits.append(logits)
        scores = self.processors(
            torch.cat([self.prefix, tokens], dim=1), logits.log_softmax(-1) if log_probs else logits
        )
        if self.scores is not None:
            self.scores.append(scores)
        return scores


class Task:
    """What transformers hands to a search, once for each sentence rather than for each hypothesis."""

    def __init__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        processors: LogitsProcessorList,
        config: GenerationConfig,
        extra: int | None,
        only_bans: bool,
        encoder_outputs: Any,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ):
        self.num_beams, self.config = config.num_beams or 1, config
        self.padding = 0 if config._pad_token_tensor is None else int(config._pad_token_tensor)
        input_ids = input_ids.to(model.device)
        self.prefix = input_ids[:: self.num_beams]
        mask = None if attention_mask is None else attention_mask[:: self.num_beams].to(model.device)
        self.limit = torch.full_like(self.prefix[:, 0], config.max_length - self.prefix.shape[1])
        if extra is not None and mask is not None:
            self.limit = mask.sum(1) + extra
        self.scorer = Scorer(processors, config, input_ids, only_bans)
        self.encoder_outputs = encoder_outputs
        self.steps = make_steps(model, encoder_outputs[0][:: self.num_beams], mask, self.num_beams)
        for column in self.prefix[:, :-1].T:
            self.steps(column[:, None].expand(-1, self.num_beams), None)
        self.last = self.prefix[:, -1:].expand(-1, self.num_beams)

    def keep(self, alive: torch.Tensor, count: int) -> torch.Tensor | None:
        """Return the (B',) sentences to go on with, where so many are over that it pays to leave them behind."""
        if not self.scorer.is_plain or not 0 < count <= 0.75 * len(alive):
            return None
        sentences = alive.nonzero()[:, 0]
        self.steps.keep(sentences)
        return sentences

    def sequences(self, tokens: torch.Tensor) -> torch.Tensor:
        """Put (B * n, T) generated tokens, -1 beyond their ends, behind their prefixes."""
        prefix = self.prefix.repeat_interleave(len(tokens) // len(self.prefix), dim=0)
        return torch.cat([prefix, tokens.masked_fill(tokens < 0, self.padding)], dim=1)


def beam_search(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: Any,
    generation_config: GenerationConfig,
    alpha: float,
    **kwargs: Any,
) -> torch.Tensor | GenerateBeamEncoderDecoderOutput:
    """Search as section 6.1 says; transformers' `generate` calls it when everything is prepared."""
    task = Task(model, input_ids, logits_processor, generation_config, **kwargs)
    scorer, num_beams, wanted = task.scorer, task.num_beams, generation_config.num_return_sequences or 1
    choices = max(2, 1 + len(scorer.ends)) * num_beams
    hypotheses, tokens, parents = Hypotheses.start(task.limit, num_beams), task.last, None
    alive, remaining, results = torch.ones_like(task.limit, dtype=torch.bool), len(task.limit), []
    while remaining:
        logits = task.steps(tokens, parents)
        continuations = scorer.continuations(logits, hypotheses.paths[..., 0].flatten(0, 1), choices)
        log_probs, ids = (tensor.unflatten(0, (-1, num_beams)) for tensor in continuations)
        parents = hypotheses.grow(log_probs, ids, scorer.ends, alpha)
        tokens = hypotheses.paths[:, :, -1, 0]
        is_over = hypotheses.are_over(alpha, wanted) & alive
        if not (count := int(is_over.sum())):
            continue
        results.append(hypotheses.select(is_over).best(alpha, wanted))
        hypotheses.scores.masked_fill_(is_over[:, None], -math.inf)
        alive, remaining = alive & ~is_over, remaining - count
        if (kept := task.keep(alive, remaining)) is not None:
            hypotheses, alive = hypotheses.select(kept), alive[kept]
            tokens, parents = tokens[kept], parents[kept]
    return beam_output(task, results)


def beam_output(
    task: Task, results: list[tuple[torch.Tensor, ...]]
) -> torch.Tensor | GenerateBeamEncoderDecoderOutput:
    """Bring the results of all sentences into their order, and into the form in which transformers returns them."""
    length = max(paths.shape[2] for _, paths, _ in results)
    order = torch.cat([sentence for sentence, _, _ in results]).argsort()
    paths = torch.cat([pad(paths, (0, 0, 0, length - paths.shape[2]), value=-1) for _, paths, _ in results])
    paths = paths[order].flatten(0, 1)  # (B * wanted, T, 2)
    paths = paths[:, : int((paths[..., 0] >= 0).sum(1).max())]
    sequences = task.sequences(paths[..., 0])
    if not task.config.return_dict_in_generate:
        return sequences
    scorer = task.scorer
    return GenerateBeamEncoderDecoderOutput(
        sequences=sequences,
        sequences_scores=torch.cat([scores for _, _, scores in results])[order].flatten(),
        scores=None if scorer.scores is None else tuple(scorer.scores),
        logits=None if scorer.logits is None else tuple(scorer.logits),
        beam_indices=paths[..., 1],
    )


def greedy_search(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: Any,
    generation_config: GenerationConfig,
    **kwargs: Any,
) -> torch.Tensor:
    """Take the best token each time; transformers' `generate` calls it when everything is prepared."""
    task = Task(model, input_ids, logits_processor, generation_config, **kwargs)
    scorer, sentence, limit = task.scorer, torch.arange(len(input_ids), device=task.last.device), task.limit
    generated = task.prefix.new_full((len(input_ids), int(limit.max())), task.padding)
    alive, remaining, tokens = torch.ones_like(limit, dtype=torch.bool), len(limit), task.last
    for length in range(generated.shape[1]):
        best = scorer.best(task.steps(tokens, None), generated[sentence, :length])
        generated[sentence, length] = best.where(alive, task.padding)
        tokens = best[:, None]
        is_over = (torch.isin(best, scorer.ends) | (length + 1 >= limit)) & alive
        if not (count := int(is_over.sum())):
            continue
        alive, remaining = alive & ~is_over, remaining - count
        if not remaining:
            generated = generated[:, : length + 1]
            break
        if (kept := task.keep(alive, remaining)) is not None:
            sentence, limit, alive, tokens = sentence[kept], limit[kept], alive[kept], tokens[kept]
    return torch.cat([task.prefix, generated], dim=1)


__all__ = ["VaswaniGenerationMixin", "beam_search", "greedy_search", "length_penalty"]
