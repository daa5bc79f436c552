"""From the logits of a step to the tokens that continue hypotheses best, without those that the settings rule out.

Axis letters: see `modeling_vaswani.py`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteria
from transformers.generation import (
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from .allowed_tokens_vaswani import AllowedTokens
from .largest_vaswani import block_maxima, largest, mend_block_maxima


# The tokens that these rule out depend on the length alone, not on the tokens before.
BANS = (SuppressTokensLogitsProcessor, MinLengthLogitsProcessor, MinNewTokensLengthLogitsProcessor)


class Scorer:
    """Turns logits into the best continuations of each row, without the tokens that the settings rule out.

    Parameters
    ----------
    processors : LogitsProcessorList
        Made of the settings by transformers.
    config : GenerationConfig
    prefix : Tensor of shape (R, P)
        The tokens before the generated ones.
    only_bans : bool
        Whether all processors come from the settings, none from the call, except `AllowedTokens`.
    summarize : callable or None, default=None
        `fusion_vaswani.summarize`, compiled.

    Attributes
    ----------
    allowed : Tensor of shape (N,), or None
        The ids of the tokens whose logits it is given, in ascending order; None if it is given all.
    """

    def __init__(
        self,
        processors: LogitsProcessorList,
        config: GenerationConfig,
        prefix: torch.Tensor,
        only_bans: bool,
        summarize: Callable | None = None,
    ):
        self.processors, self.config, self.prefix, self.summarize = processors, config, prefix, summarize
        self.is_on_cpu = prefix.device.type == "cpu"
        self.pad_token_id = 0 if config._pad_token_tensor is None else int(config._pad_token_tensor)
        dictionary = config.return_dict_in_generate
        self.scores: list | None = [] if dictionary and config.output_scores else None
        self.logits: list | None = [] if dictionary and config.output_logits else None
        # Otherwise every step needs the whole vocabulary's probabilities, and all sentences.
        self.is_plain = only_bans and self.scores is None and self.logits is None
        others = [processor for processor in processors if type(processor) not in BANS]
        is_cut = len(others) == 1 and type(others[0]) is AllowedTokens
        self.is_plain = self.is_plain and (not others or is_cut)
        self.allowed = others[0].ids.to(prefix.device) if self.is_plain and is_cut else None
        self.probabilities = prefix.new_empty(0, dtype=torch.float32)
        eos_token_ids = config._eos_token_tensor
        self.eos_token_ids = prefix.new_empty(0) if eos_token_ids is None else eos_token_ids.to(prefix.device)
        suppressed = self._columns(list(config.suppress_tokens or []))
        # On the device once, for which each step would otherwise wait.
        self.suppressed = prefix.new_tensor(suppressed)
        self.suppressed_and_ends = prefix.new_tensor(suppressed + self._columns(self.eos_token_ids.tolist()))

    def _columns(self, ids: list[int]) -> list[int]:
        """Return where the logits of these tokens are, as far as there are any."""
        if self.allowed is None:
            return ids
        return torch.isin(self.allowed, self.allowed.new_tensor(ids)).nonzero()[:, 0].tolist()

    def continuations(
        self, logits: torch.Tensor, tokens: torch.Tensor, scores: torch.Tensor, count: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the best continuations of each sentence by one token, best first.

        Parameters
        ----------
        logits : Tensor of shape (R, V)
        tokens : Tensor of shape (R, T)
            What was generated so far.
        scores : Tensor of shape (B, K)
            log P of it.
        count : int
            C, how many are wanted, of which there are as many at most as the rows have logits.

        Returns
        -------
        totals, parents, ids : Tensor of shape (B, C)
            log P with the token, the hypothesis that it continues, from 0 to K - 1, and the token.
        """
        size, count = logits.shape[1], min(count, scores.shape[1] * logits.shape[1])
        if self.is_plain:
            maxima, log_normalizers = self._normalize(logits, self._banned(tokens))
            totals, places = largest(logits, count, scores - log_normalizers.view_as(scores), maxima)
        else:
            totals, places = largest(self._process(logits, tokens, log_probs=True), count, scores)
        ids = places % size
        return totals, places // size, ids if self.allowed is None else self.allowed[ids]

    def _normalize(self, logits: torch.Tensor, banned: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Ban columns; return the logits' `block_maxima`, and their log sum exp, (R, 1), from before the ban.

        Where `allowed` cuts the logits, what is banned has no share of the probability: there the sum is of the rest.
        On a GPU, where nobody asks for the maxima, there are none.
        """
        if self.allowed is not None:
            logits.index_fill_(1, banned, -math.inf)
        if not self.is_on_cpu:
            log_normalizers = logits.float().logsumexp(1, keepdim=True)
            logits.index_fill_(1, banned, -math.inf)
            return None, log_normalizers.nan_to_num()  # of a row that has nothing but -inf
        if self.summarize is not None and self.allowed is None:
            maxima, log_normalizers = self.summarize(logits)
            logits.index_fill_(1, banned, -math.inf)
            mend_block_maxima(maxima, logits, banned.tolist())
            return maxima, log_normalizers
        # log sum exp = logit(best) - log P(best): no pass over the vocabulary except the softmax's own.
        self.probabilities = self.probabilities.to(logits).resize_(logits.shape)
        torch.softmax(logits, -1, out=self.probabilities)
        logits.index_fill_(1, banned, -math.inf)
        maxima = block_maxima(logits)
        top, best = largest(logits, 1, maxima=maxima)
        log_normalizers = top.float() - self.probabilities.gather(1, best).float().log()
        return maxima, log_normalizers.nan_to_num()  # a row that has nothing but -inf

    def best(self, logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the ids, (R,), of the tokens that continue the (R, T) tokens best."""
        if self.is_plain:
            logits.index_fill_(1, self._banned(tokens), -math.inf)
        else:
            logits = self._process(logits, tokens, log_probs=False)
        best = largest(logits, 1)[1][:, 0]
        return best if self.allowed is None else self.allowed[best]

    def _banned(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the columns of the logits that must not continue the (R, T) tokens."""
        length = self.prefix.shape[1] + tokens.shape[1]
        is_short = length < (self.config.min_length or 0) or tokens.shape[1] < (self.config.min_new_tokens or 0)
        return self.suppressed_and_ends if is_short else self.suppressed

    def _process(self, logits: torch.Tensor, tokens: torch.Tensor, log_probs: bool) -> torch.Tensor:
        logits = logits.to(torch.float32, copy=True)  # the next step overwrites the original
        if self.logits is not None:
            self.logits.append(logits)
        scores = self.processors(
            torch.cat([self.prefix, tokens], dim=1), logits.log_softmax(-1) if log_probs else logits
        )
        if self.scores is not None:
            self.scores.append(scores)
        return scores


class ForcedEndAtLimit(LogitsProcessor):
    """Force one of `token_ids` as the last token that the limit of each sentence leaves room for.

    transformers' `ForcedEOSTokenLogitsProcessor` knows only one limit, that of the longest source.

    Parameters
    ----------
    token_ids : sequence of int
    limits : Tensor of shape (B,)
        The most tokens of each sentence, prefix included.
    """

    def __init__(self, token_ids: Sequence[int], limits: torch.Tensor):
        self.token_ids, self.limits = torch.tensor(token_ids), limits

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the (R, V) scores for what follows the (R, T) tokens."""
        forced = torch.full_like(scores, -math.inf).index_fill_(1, self.token_ids.to(scores.device), 0)
        is_last = input_ids.shape[1] + 1 >= of_rows(self.limits, input_ids)
        return torch.where(is_last[:, None], forced, scores)


class EndAtLimit(StoppingCriteria):
    """Ends each sentence at its own limit; the searches of transformers know only the longest.

    Parameters
    ----------
    limits : Tensor of shape (B,)
        The most tokens of each sentence, prefix included.
    """

    def __init__(self, limits: torch.Tensor):
        self.limits = limits

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Tell which of (R, T) outputs are as long as they may be."""
        return input_ids.shape[1] >= of_rows(self.limits, input_ids)


def of_rows(limits: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
    """Return the limits, (B,), for each of the (R, T) outputs, of which R / B in turn are of one sentence."""
    return limits.to(input_ids.device).repeat_interleave(len(input_ids) // len(limits))


__all__ = ["EndAtLimit", "ForcedEndAtLimit", "Scorer"]
