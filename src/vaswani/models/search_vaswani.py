"""The searches of section 6.1: beam search with the length penalty of Wu et al. 2016, and greedy search.

Beam search goes by transformers' rules, too, where these are asked for.

All that they know of a model is its `DecoderState`. `generate` prepares a `SearchState` and calls them.

Axis letters: see `modeling_vaswani.py`.
"""

import math
from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch
from torch.nn.functional import pad
from transformers.generation import GenerateBeamEncoderDecoderOutput

from .scorer_vaswani import Scorer


# Finished sentences are dropped once this share or less is active. Dropping them copies the caches of the others: with
# steps of a quarter, all copies of a search add up to at most three times its caches.
MAX_SHARE_TO_DROP_FINISHED = 0.75


class DecoderState(Protocol):
    """A model in the middle of decoding: K hypotheses of each of B sentences, extended step by step.

    The search decides which tokens continue which hypotheses; the state keeps whatever the model needs of the past,
    such as keys and values, or the hidden state of a recurrent network.
    """

    def step(self, tokens: torch.Tensor, parents: torch.Tensor | None) -> torch.Tensor:
        """Append tokens to the hypotheses and return the logits of the next one.

        Parameters
        ----------
        tokens : Tensor of shape (B, K, T)
            In the first step the T tokens before the generated ones, later the T = 1 token that was chosen.
        parents : Tensor of shape (B, K), or None
            The hypothesis of the same sentence, 0 to K - 1, that each one continues. None if each continues itself,
            as in the first step.

        Returns
        -------
        Tensor of shape (R, V)
            On the device of `tokens`. Valid until the next step; until then the caller may change them.
        """
        ...

    def select(self, sentences: torch.Tensor) -> None:
        """Keep only the sentences that (B',) indices name: from now on B is B'."""
        ...

    def cut_output(self, ids: torch.Tensor) -> None:
        """Return from now on (R, N) logits: of the tokens with these (N,) ids alone. Called before the first step."""
        ...


def length_penalty(length: torch.Tensor | int, alpha: float) -> Any:
    """Return lp(Y) = ((5 + |Y|) / 6)^alpha, by which log P(Y|X) is divided: Eq. 14 of Wu et al. 2016.

    |Y| counts ``</s>``, but neither the decoder's start nor a given prefix, as in the original code; the papers do not
    say. A hypothesis that was cut off before its ``</s>`` is divided by the penalty of its length too.
    """
    return ((5 + length) / 6) ** alpha


class Rules(Protocol):
    """How a beam search ranks hypotheses, which of them may finish, and when it ends."""

    def penalty(self, length: torch.Tensor | int) -> Any:
        """Return by what log P(Y|X) is divided, of hypotheses of this length."""
        ...

    def finishing(self, has_ended: torch.Tensor, is_last: torch.Tensor, num_beams: int) -> torch.Tensor:
        """Tell which continuations, (B, C) from the best on, compete for a place among the finished hypotheses.

        `has_ended` are those that end by their token, `is_last` (B,) the sentences that may not become longer.
        """
        ...

    def is_decided(self, hypotheses: "Hypotheses", wanted: int) -> torch.Tensor:
        """Tell for each of the B sentences whether its `wanted` best hypotheses are found."""
        ...


@dataclass(frozen=True)
class PapersRules:
    """Those of section 6.1 and of the original code, with the penalty of Wu et al. 2016.

    "Terminate early when possible": as soon as the best live hypothesis, at the best penalty within its reach, cannot
    beat the worst of those that are wanted. (log P only falls, unless a logits processor raises it.) The original code
    applied this rule to a whole batch at once, asked for one finished hypothesis rather than for `wanted`, and went on
    until the worst of all that had finished could not be beaten either, which changes only hypotheses that nobody
    asked for.
    """

    alpha: float

    def penalty(self, length: torch.Tensor | int) -> Any:
        """Return lp(Y)."""
        return length_penalty(length, self.alpha)

    def finishing(self, has_ended: torch.Tensor, is_last: torch.Tensor, num_beams: int) -> torch.Tensor:
        """Let all compete that end. Those that are cut off come after them: see `Hypotheses.best`."""
        return has_ended

    def is_decided(self, hypotheses: "Hypotheses", wanted: int) -> torch.Tensor:
        """Compare with what the best live hypothesis may still reach."""
        length, limit = hypotheses.paths.shape[2], hypotheses.limit
        reachable = torch.stack([limit, torch.full_like(limit, length + 1)])
        bound = hypotheses.scores[:, 0] / self.penalty(reachable).amax(0)
        return hypotheses.finished_scores[:, wanted - 1] > bound


@dataclass(frozen=True)
class TransformersRules:
    """Those of transformers' own beam search: log P(Y|X) / |Y|^length_penalty.

    Of the 2K best continuations only the first K may finish. A sentence is done when K hypotheses have finished: at
    once if `early_stopping` is True; otherwise as soon as the best live one could not beat the worst of them if it
    ended where it is (False), or at the best length within its reach ("never").
    """

    length_penalty: float = 1.0
    early_stopping: bool | str = False

    def penalty(self, length: torch.Tensor | int) -> Any:
        """Return |Y|^length_penalty."""
        return length**self.length_penalty

    def finishing(self, has_ended: torch.Tensor, is_last: torch.Tensor, num_beams: int) -> torch.Tensor:
        """Let those of the first K compete that end or are cut off."""
        finishing = has_ended | is_last[:, None]
        finishing[:, num_beams:] = False
        return finishing

    def is_decided(self, hypotheses: "Hypotheses", wanted: int) -> torch.Tensor:
        """Compare the worst of K with the best live one."""
        worst = hypotheses.finished_scores[:, -1]
        if self.early_stopping is True:
            return worst > -math.inf
        waits = self.early_stopping == "never" and self.length_penalty > 0
        length = hypotheses.limit if waits else hypotheses.paths.shape[2]
        return worst >= hypotheses.scores[:, 0] / self.penalty(length)


@dataclass
class Hypotheses:
    """The K live hypotheses of each of B sentences, and the K best finished ones, best first.

    A path holds two numbers for each generated token: the token, and the row that it continued. Both are -1 beyond the
    end.
    """

    sentence: torch.Tensor  # (B,) index among all sentences
    limit: torch.Tensor  # (B,) most tokens that may be generated
    paths: torch.Tensor  # (B, K, T, 2)
    scores: torch.Tensor  # (B, K) log P(Y|X), -inf where there is none
    finished_paths: torch.Tensor  # (B, K, T, 2)
    finished_scores: torch.Tensor  # (B, K) log P(Y|X) / lp(Y), -inf where there is none

    @classmethod
    def start(cls, limit: torch.Tensor, num_beams: int) -> "Hypotheses":
        """Return one empty hypothesis for each of the sentences with these (B,) limits."""
        no_scores = torch.full((len(limit), num_beams), -math.inf, device=limit.device)
        scores = no_scores.clone()
        scores[:, 0] = 0
        paths = limit.new_empty(len(limit), num_beams, 0, 2)
        return cls(torch.arange(len(limit), device=limit.device), limit, paths, scores, paths, no_scores)

    def select(self, sentences: torch.Tensor) -> "Hypotheses":
        """Return these sentences only."""
        return Hypotheses(*(getattr(self, field.name)[sentences] for field in fields(self)))

    def advance(
        self,
        totals: torch.Tensor,
        parents: torch.Tensor,
        tokens: torch.Tensor,
        eos_token_ids: torch.Tensor,
        rules: Rules,
    ) -> torch.Tensor:
        """Continue by what `Scorer.continuations` gave; return the parents, (B, K), of the live hypotheses.

        As in the original code and in transformers, the 2K best continuations of a sentence compete, those that end it
        among them: those that end for a place among the K finished, the others for a place among the K live.
        """
        num_beams = self.scores.shape[1]
        rows = parents + num_beams * self.sentence[:, None]
        paths = torch.cat([gather_beams(self.paths, parents), torch.stack([tokens, rows], dim=-1)[:, :, None]], dim=2)
        has_ended = torch.isin(tokens, eos_token_ids)

        finishing = rules.finishing(has_ended, paths.shape[2] >= self.limit, num_beams)
        penalized = totals / rules.penalty(paths.shape[2])
        finished_scores = torch.cat([self.finished_scores, penalized.masked_fill(~finishing, -math.inf)], dim=1)
        finished_paths = torch.cat([pad(self.finished_paths, (0, 0, 0, 1), value=-1), paths], dim=1)
        self.finished_scores, best = finished_scores.topk(num_beams)
        self.finished_paths = gather_beams(finished_paths, best)

        self.scores, best = totals.masked_fill(has_ended, -math.inf).topk(num_beams)
        self.paths = gather_beams(paths, best)
        return parents.gather(1, best)

    def is_done(self, rules: Rules, wanted: int) -> torch.Tensor:
        """Tell for each sentence whether it is decided, or cannot go on."""
        is_decided = rules.is_decided(self, wanted)
        return is_decided | (self.paths.shape[2] >= self.limit) | (self.scores[:, 0] == -math.inf)

    def best(self, rules: Rules, wanted: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return sentence (B,), paths (B, wanted, T, 2) and scores (B, wanted), best first.

        Hypotheses that were cut off come after all finished ones, as in the original code, which used them only where
        none had finished. Where fewer than `wanted` are possible, the last one is repeated, with a score of -inf.
        """
        count = (self.finished_scores > -math.inf).sum(1, keepdim=True)
        order = torch.arange(wanted, device=count.device).expand(len(count), -1)
        order = order.where(order < count, order - count + self.scores.shape[1])
        scores = torch.cat([self.finished_scores, self.scores / rules.penalty(self.paths.shape[2])], dim=1)
        paths, scores = torch.cat([self.finished_paths, self.paths], dim=1), scores.gather(1, order)
        last = (scores > -math.inf).sum(1, keepdim=True).clamp(min=1) - 1
        order = order.gather(1, torch.arange(wanted, device=last.device).minimum(last))
        return self.sentence, gather_beams(paths, order), scores


def gather_beams(paths: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Pick from (B, N, T, 2) paths those that the (B, M) indices `chosen` name."""
    return paths.gather(1, chosen[..., None, None].expand(-1, -1, *paths.shape[2:]))


def step_between_sizes(count: int) -> int:
    """Return the step in which sizes of batches near `count` should come: 1, from 16 on 2, from 32 on 4, ...

    For every number of rows oneDNN makes kernels of its own, one for each matrix, and keeps a thousand of them, half a
    megabyte each (bfloat16 and int8, on a CPU). Where sizes return, kernels do.
    """
    return 1 << max(0, count.bit_length() - 4)


def num_candidates(num_beams: int, eos_token_ids: torch.Tensor) -> int:
    """Return 2K, or more where several tokens end a sentence: K candidates that do not end must always be left."""
    return max(2, 1 + len(eos_token_ids)) * num_beams


class SearchState:
    """A search in the middle: which of its sentences are active, and what it asks about the next tokens.

    Parameters
    ----------
    decoder : DecoderState
    scorer : Scorer
    limit : Tensor of shape (B,)
        The most tokens that may be generated for each sentence.
    num_beams : int
        K.
    """

    def __init__(self, decoder: DecoderState, scorer: Scorer, limit: torch.Tensor, num_beams: int):
        self.decoder, self.scorer, self.limit, self.num_beams = decoder, scorer, limit, num_beams
        if scorer.allowed is not None:
            decoder.cut_output(scorer.allowed)
        self.prefix = scorer.prefix[::num_beams]  # (B, P)
        self.is_active = torch.ones_like(limit, dtype=torch.bool)
        self.num_active = len(limit)

    @property
    def first_tokens(self) -> torch.Tensor:
        """The (B, K, P) tokens with which every hypothesis starts."""
        return self.prefix[:, None].expand(-1, self.num_beams, -1)

    def finish(self, is_done: torch.Tensor) -> bool:
        """Make the (B,) sentences that are done inactive; tell whether there are any."""
        count = int(is_done.sum())
        if count:
            self.is_active, self.num_active = self.is_active & ~is_done, self.num_active - count
        return count > 0

    def drop_finished(self) -> torch.Tensor | None:
        """Drop inactive sentences, where they are enough to pay for it; return the (B',) indices of the others.

        Some inactive ones stay, so that B' is one of few sizes. None where all of them stay: logits processors and
        recorded scores need every row of every step.
        """
        step = step_between_sizes(self.num_active)
        kept = -(-self.num_active // step) * step  # some of them inactive
        if not self.scorer.is_plain or not 0 < kept <= MAX_SHARE_TO_DROP_FINISHED * len(self.is_active):
            return None
        sentences = self.is_active.logical_not().argsort(stable=True)[:kept]
        self.decoder.select(sentences)
        self.is_active = self.is_active[sentences]
        return sentences

    def sequences(self, tokens: torch.Tensor) -> torch.Tensor:
        """Put prefixes before (B * n, T) generated tokens, and padding in place of the -1 beyond their ends."""
        prefix = self.prefix.repeat_interleave(len(tokens) // len(self.prefix), dim=0)
        return torch.cat([prefix, tokens.masked_fill(tokens < 0, self.scorer.pad_token_id)], dim=1)


def beam_search(state: SearchState, rules: Rules) -> torch.Tensor | GenerateBeamEncoderDecoderOutput:
    """Search as section 6.1 says.

    "We used beam search with a beam size of 4 and length penalty alpha = 0.6 [38]. [...] We set the maximum output
    length during inference to input length + 50, but terminate early when possible [38]."

    Parameters
    ----------
    state : SearchState
        Of all sentences, before the first step.
    rules : Rules
        The paper's, or transformers'.

    Returns
    -------
    Tensor of shape (B * n, T), or a ModelOutput
        The n = `num_return_sequences` best hypotheses of each sentence, as transformers returns them.
    """
    scorer, num_beams, wanted = state.scorer, state.num_beams, state.scorer.config.num_return_sequences or 1
    candidates = num_candidates(num_beams, scorer.eos_token_ids)
    hypotheses, tokens, parents = Hypotheses.start(state.limit, num_beams), state.first_tokens, None
    results = []
    while state.num_active:
        generated = hypotheses.paths[..., 0].flatten(0, 1)
        # No name is given to the logits, which are large: the memory of these is free for those of the next step.
        continuations = scorer.continuations(
            state.decoder.step(tokens, parents), generated, hypotheses.scores, candidates
        )
        parents = hypotheses.advance(*continuations, scorer.eos_token_ids, rules)
        tokens = hypotheses.paths[:, :, -1:, 0]
        is_done = hypotheses.is_done(rules, wanted) & state.is_active
        if not state.finish(is_done):
            continue
        results.append(hypotheses.select(is_done).best(rules, wanted))
        hypotheses.scores.masked_fill_(is_done[:, None], -math.inf)
        if (kept := state.drop_finished()) is not None:
            hypotheses, tokens, parents = hypotheses.select(kept), tokens[kept], parents[kept]
    return beam_output(state, results)


def beam_output(
    state: SearchState, results: list[tuple[torch.Tensor, ...]]
) -> torch.Tensor | GenerateBeamEncoderDecoderOutput:
    """Bring the results of all sentences into their order, and into the form in which transformers returns them."""
    length = max(paths.shape[2] for _, paths, _ in results)
    order = torch.cat([sentence for sentence, _, _ in results]).argsort()
    paths = torch.cat([pad(paths, (0, 0, 0, length - paths.shape[2]), value=-1) for _, paths, _ in results])
    paths = paths[order].flatten(0, 1)  # (B * wanted, T, 2)
    paths = paths[:, : int((paths[..., 0] >= 0).sum(1).max())]
    sequences, scorer = state.sequences(paths[..., 0]), state.scorer
    if not scorer.config.return_dict_in_generate:
        return sequences
    return GenerateBeamEncoderDecoderOutput(
        sequences=sequences,
        sequences_scores=torch.cat([scores for _, _, scores in results])[order].flatten(),
        scores=None if scorer.scores is None else tuple(scorer.scores),
        logits=None if scorer.logits is None else tuple(scorer.logits),
        beam_indices=paths[..., 1],
    )


def greedy_search(state: SearchState) -> torch.Tensor:
    """Take the best token at each step.

    Parameters
    ----------
    state : SearchState
        Of all B sentences, with one hypothesis of each, before the first step.

    Returns
    -------
    Tensor of shape (B, T)
    """
    scorer, limit, pad_token_id = state.scorer, state.limit, state.scorer.pad_token_id
    sentence, tokens = torch.arange(len(limit), device=limit.device), state.first_tokens
    generated = state.prefix.new_empty(len(limit), 0)  # as long as outputs become, whatever their limit is
    while state.num_active:
        best = scorer.best(state.decoder.step(tokens, None), generated[sentence])
        column = generated.new_full((len(generated),), pad_token_id)
        column[sentence] = best.where(state.is_active, pad_token_id)
        generated = torch.cat([generated, column[:, None]], dim=1)
        tokens = best[:, None, None]
        is_done = (torch.isin(best, scorer.eos_token_ids) | (generated.shape[1] >= limit)) & state.is_active
        if state.finish(is_done) and (kept := state.drop_finished()) is not None:
            sentence, limit, tokens = sentence[kept], limit[kept], tokens[kept]
    return torch.cat([state.prefix, generated], dim=1)


__all__ = [
    "DecoderState",
    "PapersRules",
    "SearchState",
    "TransformersRules",
    "beam_search",
    "greedy_search",
    "length_penalty",
]
