"""Translate many sentences: sorted by length, in batches of a given number of tokens, returned in their order.

The command line and the evaluations of training both translate by this.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    CompileConfig,
    GenerationConfig,
    LogitsProcessor,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as verbosity_of_transformers

from .errors import UserError, first_line, not_found
from .models.allowed_tokens_vaswani import AllowedTokens
from .models.decoding_vaswani import PAPERS_DECODING, DecodingSettings
from .models.fusion_vaswani import CannotCompile
from .models.generation_vaswani import length_arguments, max_positions
from .models.int8_vaswani import Int8IsMissing
from .models.pipeline_vaswani import tokenizer_problem
from .models.search_vaswani import step_between_sizes
from .workers import Pool, choose_workers


logger = logging.getLogger(__name__)

INT8 = "int8"  # beside the types of torch, what `load` takes as `dtype`

# Where `generate()` keeps the logits of all steps (`keeps_steps`), batches must be smaller.
MAX_SCORE_BYTES = 1 << 30
SCORES_OF_SEQUENCES = {"return_dict_in_generate": True}
SCORES = SCORES_OF_SEQUENCES | {"output_scores": True}
# The settings of length with which a model writes one token; None where they are left out.
ONE_TOKEN = {"max_new_tokens": 1, "min_new_tokens": 0, "max_length": None, "min_length": None}
# Workers get no smaller shares of the sentences that are left: matrix products need rows.
MIN_SHARE = 16


class Hypothesis(NamedTuple):
    """One translation of a sentence, and its score if that was asked for.

    With beams the score is what the search ranks by, log-probability over length penalty; without, it is the
    log-probability. An empty sentence has the empty translation with score 0.
    """

    text: str
    score: float | None = None


def load(
    name: str,
    tokenizer_name: str | None = None,
    device: str | None = None,
    dtype: str = "auto",
    torch_compile: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model for translation and its tokenizer, from a folder or the Hub.

    Parameters
    ----------
    name : str
        Folder or Hub id.
    tokenizer_name : str or None, default=None
        Where the tokenizer is, if not there.
    device : str or None, default=None
        Such as "cpu" or "cuda:1"; None means an accelerator where there is one.
    dtype : str, default="auto"
        Such as "float32" or "bfloat16"; "auto" means the one that it was saved in. "int8" is for our Transformers on a
        CPU, and none is chosen then by `device` None; where the CPU or torch cannot, float32 takes its place.
    torch_compile : bool, default=False
        Whether its searches compile what they can, which is for our Transformers on a CPU: see `fusion_vaswani`.

    Raises
    ------
    UserError
        If model or tokenizer is missing or not whole, they do not fit each other, there is no such device, or int8 or
        compiling is not for it.

    Warns
    -----
    A warning is logged where float32 takes int8's place, or nothing can be compiled.
    """
    model, problems = load_weights(name, dtype="float32" if dtype == INT8 else dtype)
    problems.pop("unexpected", None)  # of which others may know
    if problems:
        raise UserError(f"model={name!r} has weights that do not fit its config.json: {', '.join(problems.values())}")
    check_generation_config(name)
    tokenizer = load_tokenizer(tokenizer_name or name, model)
    if device is None:
        device = "cpu" if dtype == INT8 else str(torch.accelerator.current_accelerator() or "cpu")
    try:
        model = model.to(device).eval()
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device={device!r} must be a device of this machine: {first_line(error)}") from error
    if dtype == INT8:
        _quantize(model, name)
    if torch_compile:
        _compile(model, name)
    return model, tokenizer


def load_weights(name: str, setting: str = "model", **how: Any) -> tuple[Any, dict[str, str]]:
    """Load a model from a folder or the Hub, and say in which ways its weights do not fit its config.

    Parameters
    ----------
    name : str
    setting : str, default="model"
        What named it, for the error.
    **how
        As for ``from_pretrained``.

    Returns
    -------
    model : PreTrainedModel
        Weights that it lacks are random.
    problems : dict of str to str
        How many weights are "missing", "unexpected" or "mismatched", if any are, and one of them, in words.

    Raises
    ------
    UserError
        If it cannot be loaded at all.
    """
    verbosity = verbosity_of_transformers.get_verbosity()
    verbosity_of_transformers.set_verbosity_error()  # its table of weights says less than the problems
    try:
        model, report = AutoModelForSeq2SeqLM.from_pretrained(
            name, ignore_mismatched_sizes=True, output_loading_info=True, **how
        )
    except Exception as error:  # depending on what is wrong, the libraries raise half a dozen kinds
        if not Path(name).exists():
            raise not_found(name, error, setting) from error
        raise UserError(f"{setting}={name!r} cannot be loaded: {first_line(error)}") from error
    finally:
        verbosity_of_transformers.set_verbosity(verbosity)
    problems = {}
    for kind, keys in report.items():
        names = sorted(key if isinstance(key, str) else key[0] for key in keys)  # some come with two shapes
        if names:
            problems[kind.removesuffix("_keys")] = f"{len(names)} {kind.removesuffix('_keys')}, such as {names[0]}"
    return model, problems


def check_generation_config(name: str, setting: str = "model") -> None:
    """Refuse a folder whose `generation_config.json` cannot be used: transformers would search without it."""
    if not (Path(name) / "generation_config.json").exists():
        return
    try:
        DecodingSettings.read({}, None, GenerationConfig.from_pretrained(name))
    except (OSError, TypeError, ValueError) as error:
        raise UserError(
            f"{setting}={name!r} has a generation_config.json that cannot be used: {first_line(error)}"
        ) from error


def load_tokenizer(where: str, model: Any) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model, or of a model of `interop.engines`, from a folder or the Hub.

    Raises
    ------
    UserError
        If it is missing, or does not fit the model.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(where)
    except Exception as error:  # depending on what is missing, the library raises half a dozen kinds
        raise UserError(
            f"model={where!r} has no tokenizer: it must hold a tokenizer.json beside the model ({first_line(error)})"
        ) from error
    problem = tokenizer_problem(model, tokenizer)
    if problem is not None:
        raise UserError(f"model={where!r} {problem}")
    return tokenizer


def _quantize(model: PreTrainedModel, name: str) -> None:
    """Put int8 in the place of a model's matrices, or leave them and warn where this machine cannot."""
    if not hasattr(model, "quantize"):
        raise UserError(f"dtype='int8' is for Transformers of this library, and model={name!r} is of another kind")
    try:
        model.quantize()
    except Int8IsMissing as error:
        logger.warning("%s; the model computes in float32 instead", error)
    except ValueError as error:
        raise UserError(f"dtype='int8' does not go together with model={name!r}: {error}") from error


def _compile(model: PreTrainedModel, name: str) -> None:
    """Let a model's searches compile what they can, or warn where there is no compiler."""
    config = CompileConfig()
    fused = model.fused(config) if hasattr(model, "fused") else None
    if fused is None:
        raise UserError(
            f"torch_compile is for Transformers of this library on a CPU, and model={name!r} is of another kind, "
            f"or on device {str(model.device)!r}"
        )
    try:
        fused.enter(torch.zeros(2, model.config.d_model), torch.bfloat16, False)  # a cast: something to compile
    except CannotCompile as error:
        logger.warning("%s; nothing is compiled instead", error)
        return
    model.generation_config.compile_config = config


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
        As for ``generate()``. Where no length is given, an output may have the source's length + 50 tokens, as in the
        paper (section 6.1).

    Raises
    ------
    UserError
        If there cannot be so many workers, or the model's search does not know the paper's length penalty.
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
        limits = [most for most in (max_source_length, max_positions(model.config)) if most is not None]
        self.limit = min(limits, default=None)
        # No method of this object: it would refer to itself, and hold the model when its user does not any more.
        asked = SCORES if self.keeps_steps else SCORES_OF_SEQUENCES if with_scores else {}
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
            If ``generate()`` does not take what it was given.
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
        return self.generate_kwargs.get(name) or getattr(self.model.generation_config, name, None) or 1

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
    sequences = getattr(output, "sequences", output)
    texts = tokenizer.batch_decode(sequences, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    scores = _scores(model, output) if generate_kwargs.get("return_dict_in_generate") else [None] * len(texts)
    return list(map(Hypothesis, texts, scores))


def _scores(model: PreTrainedModel, output: Any) -> list[float]:
    """Return the scores by which beam search ranked, or else log-probabilities."""
    if getattr(output, "sequences_scores", None) is not None:
        return output.sequences_scores.tolist()
    steps = model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
    # The scores of <pad> after </s> do not count.
    ended = (output.sequences[:, 1:] == model.config.pad_token_id)[:, : steps.shape[1]]
    return steps.masked_fill(ended, 0.0).sum(1).tolist()
