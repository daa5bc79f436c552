"""Searches as in section 6.1: beam search with Wu et al.'s length penalty; and greedy search, as fast.

`generate` calls them when transformers has prepared everything.

Axis letters: B sentences, K hypotheses of a sentence (beams), R = B * K rows, T target tokens so far, S source
positions, V vocabulary.
"""

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel
from transformers.generation import (
    ForcedEOSTokenLogitsProcessor,
    GenerateBeamEncoderDecoderOutput,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from .incremental_vaswani import make_steps


# What these rule out depends on the length alone, not on what was generated.
BANS = (SuppressTokensLogitsProcessor, MinLengthLogitsProcessor, MinNewTokensLengthLogitsProcessor)


def length_penalty(length: torch.Tensor | int, alpha: float) -> Any:
    """Return lp(Y) = ((5 + |Y|) / 6)^alpha, by which log P(Y|X) is divided: Eq. 14 of Wu et al. 2016.

    |Y| counts ``</s>``, but neither the decoder's start nor a given prefix, as in the original code; the papers do not
    say. A hypothesis that was cut off before its ``</s>`` is divided by the penalty of its length too.
    """
    return ((5 + length) / 6) ** alpha


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
        **model_kwargs: Any,
    ):
        self.num_beams, self.config = config.num_beams or 1, config
        self.padding = 0 if config._pad_token_tensor is None else int(config._pad_token_tensor)
        self.steps = make_steps(model, input_ids, self.num_beams, model_kwargs)
        input_ids = input_ids.to(self.steps.device)
        self.prefix = input_ids[:: self.num_beams]
        self.limit = torch.full_like(self.prefix[:, 0], config.max_length - self.prefix.shape[1])
        if extra is not None:
            self.limit = source_lengths(model_kwargs)[:: self.num_beams].to(self.limit) + extra
            processors = with_ends_forced_at(self.limit, processors, self.prefix.shape[1], self.num_beams)
        self.scorer = Scorer(processors, config, input_ids, only_bans)
        self.start = self.prefix[:, None].expand(-1, self.num_beams, -1)

    def keep(self, alive: torch.Tensor, count: int) -> torch.Tensor | None:
        """Return the (B',) sentences to go on with, where so many are over that it pays to leave them behind."""
        if not self.scorer.is_plain or not self.steps.can_keep or not 0 < count <= 0.75 * len(alive):
            return None
        sentences = alive.nonzero()[:, 0]
        self.steps.keep(sentences)
        return sentences

    def sequences(self, tokens: torch.Tensor) -> torch.Tensor:
        """Put (B * n, T) generated tokens, -1 beyond their ends, behind their prefixes."""
        prefix = self.prefix.repeat_interleave(len(tokens) // len(self.prefix), dim=0)
        return torch.cat([prefix, tokens.masked_fill(tokens < 0, self.padding)], dim=1)


class ForcedEndAtLimit(LogitsProcessor):
    """Let nothing but `token_id` follow where a sentence has reached its limit.

    transformers' `ForcedEOSTokenLogitsProcessor` knows one limit for all sentences, the longest.
    """

    def __init__(self, token_id: torch.Tensor, lengths: torch.Tensor):
        self.token_id, self.lengths = token_id, lengths

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the (R, V) scores for what follows the (R, T) tokens."""
        forced = torch.full_like(scores, -math.inf).index_fill_(1, self.token_id.to(scores.device), 0)
        return torch.where((input_ids.shape[1] + 1 >= self.lengths)[:, None], forced, scores)


def with_ends_forced_at(
    limit: torch.Tensor, processors: LogitsProcessorList, prefix_length: int, num_beams: int
) -> LogitsProcessorList:
    """Return processors among which a forced end comes at each sentence's own limit, (B,) tokens behind the prefix."""
    lengths = (limit + prefix_length).repeat_interleave(num_beams)
    return LogitsProcessorList(
        ForcedEndAtLimit(torch.as_tensor(processor.eos_token_id).flatten(), lengths)
        if isinstance(processor, ForcedEOSTokenLogitsProcessor)
        else processor
        for processor in processors
    )


def source_lengths(model_kwargs: dict[str, Any]) -> torch.Tensor:
    """Return the (R,) numbers of source tokens."""
    states, mask = model_kwargs["encoder_outputs"][0], model_kwargs.get("attention_mask")
    return states.new_full(states.shape[:1], states.shape[1]) if mask is None else mask.sum(1)


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
    hypotheses, tokens, parents = Hypotheses.start(task.limit, num_beams), task.start, None
    alive, remaining, results = torch.ones_like(task.limit, dtype=torch.bool), len(task.limit), []
    while remaining:
        logits = task.steps(tokens, parents)
        continuations = scorer.continuations(logits, hypotheses.paths[..., 0].flatten(0, 1), choices)
        log_probs, ids = (tensor.unflatten(0, (-1, num_beams)) for tensor in continuations)
        parents = hypotheses.grow(log_probs, ids, scorer.ends, alpha)
        tokens = hypotheses.paths[:, :, -1:, 0]
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
    scorer, sentence, limit = task.scorer, torch.arange(len(input_ids), device=task.limit.device), task.limit
    generated = task.prefix.new_full((len(input_ids), int(limit.max())), task.padding)
    alive, remaining, tokens = torch.ones_like(limit, dtype=torch.bool), len(limit), task.start
    for length in range(generated.shape[1]):
        best = scorer.best(task.steps(tokens, None), generated[sentence, :length])
        generated[sentence, length] = best.where(alive, task.padding)
        tokens = best[:, None, None]
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


__all__ = ["beam_search", "greedy_search", "length_penalty"]
