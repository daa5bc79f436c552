"""Translate many sentences: sorted by length, in batches of a given number of tokens, returned in their order.

The command line and the evaluations of training both translate by this.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import torch
from transformers import LogitsProcessor, PreTrainedModel, PreTrainedTokenizerBase

from .errors import UserError, first_line
from .models.allowed_tokens_vaswani import AllowedTokens
from .models.decoding_vaswani import PAPERS_DECODING
from .models.generation_vaswani import length_arguments, max_positions
from .models.search_vaswani import step_between_sizes
from .workers import Pool, choose_workers


logger = logging.getLogger(__name__)

# Where `generate()` keeps the logits of all steps (`keeps_steps`), batches must be smaller.
MAX_SCORE_BYTES = 1 << 30
SCORES_OF_SEQUENCES = {"return_dict_in_generate": True}
# The settings of length with which a model writes one token; None where they are left out.
ONE_TOKEN = {"max_new_tokens": 1, "min_new_tokens": 0, "max_length": None, "min_length": None}
# Workers get no smaller shares of the sentences that are left: matrix products need rows.
MIN_SHARE = 16


class Hypothesis(NamedTuple):
    """One translation of a sentence, and its score if that was asked for.

    With beams the score is what the search ranks by, log-probability over length penalty. Without, it is the
    log-probability, in which whatever a setting such as `min_new_tokens` rules out keeps its share; with a shortlist,
    that among its tokens. An empty sentence has the empty translation with score 0.
    """

    text: str
    score: float | None = None


class Translator:
    """Translates sentences, the longest first, as often as it is called: for that long, its processes live.

    Parameters
    ----------
    model, tokenizer
        A sequence-to-sequence model, which must not change from one call to the next, and its tokenizer.
    max_batch_tokens : int, default=4096
        Most source tokens of a batch, padding included; a longer sentence is a batch of its own.
    with_scores : bool, default=False
        Whether to score the translations.
    max_source_length : int or None, default=None
        Cut longer sentences off to this many tokens, ``</s>`` included, with a warning. A model with a table of
        positions has a limit of its own.
    constraint : callable or None, default=None
        Makes a logits processor for a batch, from the indices of its sentences.
    workers : int, default=1
        Processes that translate batches at the same time, sharing the memory of the model, which must be on a CPU
        (Linux). Batches become smaller, so that all have work.
    shortlist : callable or None, default=None
        Tells which tokens the translations of a batch may be made of, from the ids of its sentences:
        `Shortlist.allowed`.
    **generate_kwargs
        As for ``generate()``. Where no length is given, neither here nor in the model's settings, an output may have
        the source's length + 50 tokens, as in the paper (section 6.1).

    Raises
    ------
    UserError
        If `max_source_length` is not above 0, there cannot be so many workers, or the model's search does not know the
        paper's length penalty.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        max_batch_tokens: int = 4096,
        with_scores: bool = False,
        max_source_length: int | None = None,
        constraint: Callable[[Sequence[int]], LogitsProcessor] | None = None,
        workers: int = 1,
        shortlist: Callable[[Sequence[Sequence[int]]], torch.Tensor] | None = None,
        **generate_kwargs: Any,
    ):
        alpha = generate_kwargs.get("length_penalty_alpha")
        if alpha is not None and not (hasattr(model, "decoder_state") or hasattr(model, "engine")):
            raise UserError(
                f"length_penalty_alpha={alpha} is for models of this library, not for {type(model).__name__}"
            )
        self.model, self.tokenizer, self.max_batch_tokens = model, tokenizer, max_batch_tokens
        self.with_scores, self.generate_kwargs = with_scores, generate_kwargs
        self.keeps_steps = with_scores and keeps_steps(model, generate_kwargs)
        if max_source_length is not None and max_source_length < 1:
            raise UserError(f"max_source_length={max_source_length} must be at least 1")
        limits = [most for most in (max_source_length, max_positions(model.config)) if most is not None]
        self.limit = min(limits, default=None)
        # No method of this object: it would refer to itself, and hold the model when its user does not any more.
        asked = SCORES_OF_SEQUENCES if with_scores else {}
        if self.keeps_steps:
            asked = asked | {"output_logits" if shortlist is None else "output_scores": True}
        batches = BatchTranslator(model, tokenizer, constraint, shortlist, generate_kwargs | asked)
        self.pool = Pool(batches, choose_workers(workers, model.device))

    def __enter__(self) -> "Translator":
        return self

    def __exit__(self, *error: object) -> None:
        self.pool.close()

    def __call__(
        self, sentences: Sequence[str], on_batch: Callable[[int], object] = lambda translated: None
    ) -> list[list[Hypothesis]]:
        """Translate sentences.

        Parameters
        ----------
        sentences : sequence of str
            An empty one, or one of white space only, has the empty translation.
        on_batch : callable, optional
            Called after each batch with its number of sentences, first with that of the empty ones; may raise to stop.

        Returns
        -------
        list of list of Hypothesis
            In the order of `sentences`; `num_return_sequences` of each, the best first.

        Raises
        ------
        UserError
            If ``generate()`` does not take what it was given, or a batch needs more memory than there is.
        """
        settings = {name: self._setting(name) for name in ("num_return_sequences", "num_beams")}
        nothing = Hypothesis("", 0.0 if self.with_scores else None)
        results = [[nothing] * settings["num_return_sequences"] for _ in sentences]
        indices = [index for index, sentence in enumerate(sentences) if sentence.strip()]
        encoded = _encode(self.tokenizer, [sentences[index] for index in indices], self.limit)
        ids = dict(zip(indices, encoded, strict=True))
        on_batch(len(sentences) - len(indices))
        bytes_per_token = 4 * self.model.config.vocab_size * settings["num_beams"] if self.keeps_steps else 0
        lengths = {index: len(tokens) for index, tokens in ids.items()}
        batches = list(make_batches(lengths, self.max_batch_tokens, bytes_per_token, self.pool.size))
        if len(batches) > 1:
            self._prepare([ids[index] for index in sorted(lengths, key=lambda index: lengths[index])[:MIN_SHARE]])
        with closing(self.pool.run([(batch, [ids[index] for index in batch]) for batch in batches])) as translated:
            for number, hypotheses in translated:
                batch = batches[number]
                share = len(hypotheses) // len(batch)
                for row, index in enumerate(batch):
                    results[index] = hypotheses[row * share : (row + 1) * share]
                on_batch(len(batch))
        return results

    def _setting(self, name: str) -> int:
        configs = self.generate_kwargs.get("generation_config"), self.model.generation_config
        return self.generate_kwargs.get(name) or next(filter(None, (getattr(c, name, None) for c in configs)), 1)

    def _prepare(self, ids: Sequence[Sequence[int]]) -> None:
        """Make what the model keeps from one call to the next before there are workers, so that they share it."""
        if self.pool.size > 1 and not self.pool.is_started:
            inputs = _padded(self.tokenizer, ids, self.model)
            # What else limits the length would contradict the one token.
            given = {name: value for name, value in self.generate_kwargs.items() if name not in ONE_TOKEN}
            given |= {name: value for name, value in ONE_TOKEN.items() if value is not None}
            _generate(self.model, self.tokenizer, inputs, given)


class BatchTranslator(NamedTuple):
    """Translates a batch: what the workers do. The fields are the parameters of `Translator`."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    constraint: Callable[[Sequence[int]], LogitsProcessor] | None
    shortlist: Callable[[Sequence[Sequence[int]]], torch.Tensor] | None
    generate_kwargs: dict[str, Any]

    def __call__(self, task: tuple[Sequence[int], Sequence[Sequence[int]]]) -> list[Hypothesis]:
        """Translate the sentences with these indices and ids."""
        indices, ids = task
        processors = [] if self.constraint is None else [self.constraint(indices)]
        if self.shortlist is not None:
            processors.append(AllowedTokens(self.shortlist(ids)))
        given = self.generate_kwargs | ({"logits_processor": processors} if processors else {})
        inputs = _padded(self.tokenizer, ids, self.model)
        return _generate(self.model, self.tokenizer, inputs, given)


def translate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    on_batch: Callable[[int], object] = lambda translated: None,
    **how: Any,
) -> list[list[Hypothesis]]:
    """Translate sentences, the longest first: a `Translator`, made of `how` and called once."""
    with Translator(model, tokenizer, **how) as translator:
        return translator(sentences, on_batch)


def _encode(tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], limit: int | None) -> list[list[int]]:
    """Encode sentences, cutting each off after at most `limit` tokens, the last of which stays ``</s>``."""
    encoded = tokenizer(list(sentences), verbose=False).input_ids if sentences else []
    if limit is None:
        return encoded
    too_long = [row for row, ids in enumerate(encoded) if len(ids) > limit]
    if too_long:
        logger.warning(
            "%s of %s sentences are cut off after %s tokens; the first of them has %s: %.60s...",
            len(too_long), len(sentences), limit, len(encoded[too_long[0]]), sentences[too_long[0]],
        )  # fmt: skip
    for row in too_long:
        encoded[row] = [*encoded[row][: limit - 1], encoded[row][-1]]
    return encoded


def _padded(tokenizer: PreTrainedTokenizerBase, ids: Sequence[Sequence[int]], model: PreTrainedModel) -> Any:
    return tokenizer.pad({"input_ids": list(ids)}, return_tensors="pt").to(model.device)


def make_batches(
    lengths: dict[int, int], max_tokens: int, bytes_per_token: int, workers: int = 1
) -> Iterator[list[int]]:
    """Yield batches of keys, the longest first, each within `max_tokens` and `MAX_SCORE_BYTES` or of one sentence.

    The last ones become smaller, so that several workers end at about the same time.
    """
    order = sorted(lengths, key=lambda index: -lengths[index])
    while order:
        longest = lengths[order[0]]
        size = max_tokens // longest
        if bytes_per_token:
            output_length = longest + PAPERS_DECODING["extra_target_tokens"]
            size = min(size, MAX_SCORE_BYTES // (bytes_per_token * output_length))
        share = len(order) // workers
        if workers > 1 and share >= MIN_SHARE:
            size = min(size, share)
        size = max(1, size - size % step_between_sizes(size))
        yield order[:size]
        order = order[size:]


def keeps_steps(model: PreTrainedModel, generate_kwargs: Mapping[str, Any]) -> bool:
    """Tell whether ``generate()`` must keep the logits of all steps for the scores of translations.

    Our own beam search has them without that, as has the search of another engine.

    Raises
    ------
    UserError
        If ``generate()`` does not take what it is given.
    """
    if not hasattr(model, "has_own_search"):
        return not hasattr(model, "engine")
    try:
        return not model.has_own_search(**generate_kwargs, **SCORES_OF_SEQUENCES)
    except ValueError as error:
        raise UserError(first_line(error)) from error


def _generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    inputs: dict[str, torch.Tensor],
    generate_kwargs: dict[str, Any],
) -> list[Hypothesis]:
    """Translate one batch: n hypotheses of its first sentence, n of its second, ..."""
    given = generate_kwargs | length_arguments(model, inputs["input_ids"].shape[1], generate_kwargs)
    try:
        output = model.generate(**inputs, **given)
    except ValueError as error:  # arguments that it does not take
        raise UserError(first_line(error)) from error
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        raise _too_large(*inputs["input_ids"].shape) from error
    sequences = getattr(output, "sequences", output)
    texts = tokenizer.batch_decode(sequences, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    scores = _scores(model, output) if generate_kwargs.get("return_dict_in_generate") else [None] * len(texts)
    return list(map(Hypothesis, texts, scores))


def _too_large(sentences: int, length: int) -> UserError:
    """Say what must be smaller for a batch to fit into memory."""
    if sentences > 1:
        what = f"{sentences:,} sentences of up to {length:,} tokens need"
        return UserError(f"{what} more memory than there is: max_batch_tokens, num_beams or workers must be lower")
    what = f"a sentence of {length:,} tokens needs"
    return UserError(f"{what} more memory than there is: it must be shorter, or num_beams or workers lower")


def _scores(model: PreTrainedModel, output: Any) -> list[float]:
    """Return the scores by which beam search ranked, or else log-probabilities."""
    if getattr(output, "sequences_scores", None) is not None:
        return output.sequences_scores.tolist()
    steps = output.scores if output.logits is None else output.logits  # the former with a shortlist
    for logits in steps:
        logits[:, model.config.pad_token_id] = -torch.inf  # no search writes it
    steps = model.compute_transition_scores(output.sequences, steps, normalize_logits=True)
    # The scores of <pad> after </s> do not count.
    ended = (output.sequences[:, 1:] == model.config.pad_token_id)[:, : steps.shape[1]]
    return steps.masked_fill(ended, 0.0).sum(1).tolist()
