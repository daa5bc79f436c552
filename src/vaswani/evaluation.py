"""Evaluate a model on a text: how likely it finds the references, its translations, and their scores."""

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .errors import UserError
from .models.decoding_vaswani import DecodingSettings
from .models.int8_vaswani import is_quantized
from .models.legal_trees_vaswani import LegalTrees
from .models.trees_vaswani import TREES
from .parsing import scores as parsing
from .results import Evaluation, ParsingEvaluation, TranslationEvaluation
from .scoring import protocols
from .scoring.references import EvaluationSet
from .translation import translate


Pair = tuple[Sequence[int], Sequence[int]]  # source and target ids, each ending in ``</s>``
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # (B, S) ids, (B, S) mask, (B, T) labels, -100 where padded

IGNORED_LABEL = -100  # as in PyTorch's losses


@torch.no_grad()
def negative_log_likelihood(model: PreTrainedModel, batches: Iterable[Batch]) -> float:
    """Return the mean over target tokens of -ln p(token), teacher-forced and not smoothed.

    Parameters
    ----------
    model : PreTrainedModel, or a model of `interop.engines`
        In evaluation mode, if dropout is to be left out.
    batches : iterable of Batch
        Such as `encode_in_batches` yields.
    """
    nll, tokens = 0.0, 0
    for batch in batches:
        input_ids, attention_mask, labels = (tensor.to(model.device) for tensor in batch)
        tokens += int((labels != IGNORED_LABEL).sum())
        if hasattr(model, "log_probabilities"):  # another engine
            ended = labels.masked_fill(labels == IGNORED_LABEL, model.config.eos_token_id)
            found = model.log_probabilities(input_ids, attention_mask, ended)
            nll -= found.masked_fill(labels == IGNORED_LABEL, 0).sum().item()
            continue
        decoder_input_ids = model.prepare_decoder_input_ids_from_labels(labels)
        logits = model(input_ids, attention_mask, decoder_input_ids=decoder_input_ids, use_cache=False).logits
        nll += cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="sum").item()
    return nll / tokens


def encode_in_batches(
    tokenizer: PreTrainedTokenizerBase,
    text: EvaluationSet,
    max_tokens: int,
    limit: int | None = None,
    warn: Callable[[str], object] = warnings.warn,
) -> Iterator[Batch]:
    """Encode the pairs of a text, except those of which a side is empty, or longer than a table of positions.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
    text : EvaluationSet
        With sources.
    max_tokens : int
        Positions of a batch, padding included, on either side; a longer pair is a batch of its own.
    limit : int or None, default=None
        Most tokens of a side, if the model has a table of positions.
    warn : callable
        Takes a sentence that says how many pairs are longer.

    Yields
    ------
    Batch
        Pairs of similar length, the longest first.

    Raises
    ------
    UserError
        If all pairs are longer.
    """
    pairs = zip(text.sources or [], text.references, strict=True)
    full = [pair for pair in pairs if all(side.strip() for side in pair)]
    given = {name: [pair[side] for pair in full] for side, name in enumerate(("text", "text_target"))}
    sides = (tokenizer(**{name: sentences}, verbose=False).input_ids for name, sentences in given.items())
    remaining: list[Pair] = sorted(zip(*sides, strict=True), key=lambda pair: max(map(len, pair)), reverse=True)
    fitting = [pair for pair in remaining if limit is None or max(map(len, pair)) <= limit]
    if len(fitting) < len(remaining):
        too_long = len(remaining) - len(fitting)
        said = f"{too_long:,} of {len(remaining):,} pairs are longer than the model's {limit:,} positions"
        if not fitting:
            raise UserError(f"{said}: nothing is left to compute a likelihood of")
        warn(f"{said}: the likelihood leaves them out")
    remaining = fitting
    while remaining:
        size = max(1, max_tokens // max(map(len, remaining[0])))
        yield _pad(remaining[:size], tokenizer.pad_token_id or 0)
        remaining = remaining[size:]


def _pad(pairs: Sequence[Pair], pad_token_id: int) -> Batch:
    sources, targets = ([torch.tensor(ids) for ids in side] for side in zip(*pairs, strict=True))
    mask = [torch.ones_like(source) for source in sources]
    return (
        pad_sequence(sources, batch_first=True, padding_value=pad_token_id),
        pad_sequence(mask, batch_first=True),
        pad_sequence(targets, batch_first=True, padding_value=IGNORED_LABEL),
    )


def translate_all(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    **kwargs: Any,
) -> list[str]:
    """Return the best translation of each sentence, with a progress bar; `kwargs` as for `translate`."""
    with tqdm(total=len(sentences), desc="Translating", unit=" sentences", leave=False) as progress:
        how = {"num_return_sequences": 1, **kwargs}  # also where the model's settings ask for more
        results = translate(model, tokenizer, sentences, on_batch=progress.update, **how)
    return [best.text for best, *_ in results]


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: EvaluationSet,
    batches: Iterable[Batch],
    target_lang: str | None = None,
    lowercase: bool = False,
    tokenized: bool = False,
    max_source_length: int | None = None,
    constrained: bool = True,
    warn: Callable[[str], Any] = warnings.warn,
    **kwargs: Any,
) -> tuple[Evaluation, list[str]]:
    """Evaluate a model on a text: all of it is translated, the batches give the likelihood.

    Parameters
    ----------
    model, tokenizer
        Evaluated without dropout; the model's mode is restored.
    text : EvaluationSet
        With sources.
    batches : iterable of Batch
        Its encoded pairs, or those of them that training would keep.
    target_lang, lowercase, tokenized
        As for `judge`.
    max_source_length : int or None, default=None
        Translate only this many tokens of a longer source, ``</s>`` included.
    constrained : bool, default=True
        Whether a parser may write nothing but trees (`LegalTrees`), as `pipeline("parse")` has it.
    warn : callable, default=warnings.warn
        Is told, a sentence each, that translations are empty, or look tokenized or escaped.
    **kwargs
        As for `translate`.

    Returns
    -------
    evaluation : Evaluation
    outputs : list of str
    """
    started = time.perf_counter()
    training = model.training
    model.eval()
    try:
        nll = negative_log_likelihood(model, batches)
        sources = text.sources or []
        if target_lang == TREES and constrained:
            kwargs["constraint"] = lambda rows: LegalTrees(tokenizer, [sources[row].split() for row in rows])
        outputs = translate_all(model, tokenizer, sources, max_source_length=max_source_length, **kwargs)
    finally:
        model.train(training)
    for suspicion in [] if target_lang == TREES else protocols.suspicions(outputs, text.references, tokenized):
        warn(suspicion)
    truncated = None
    if max_source_length is not None:
        lengths = map(len, tokenizer(list(sources), verbose=False).input_ids)
        truncated = sum(length > max_source_length for length in lengths)
    evaluation = replace(
        judge(text, outputs, target_lang, lowercase, tokenized),
        nll=round(nll, 4),
        perplexity=round(math.exp(min(nll, 100.0)), 3),
        decoding=describe_decoding(model, kwargs),
        truncated_sources=truncated,
        seconds=round(time.perf_counter() - started, 1),
    )
    return evaluation, outputs


def judge(
    text: EvaluationSet,
    outputs: Sequence[str],
    target_lang: str | None = None,
    lowercase: bool = False,
    tokenized: bool = False,
) -> Evaluation:
    """Score what a model wrote, translations or parses.

    Parameters
    ----------
    text : EvaluationSet
        With sources, if it is of trees.
    outputs : sequence of str
    target_lang : str or None, default=None
        As for `scoring.protocols.score`; "tree" says that the outputs are parses.
    lowercase : bool, default=False
        Whether case does not matter to the scores of translations.
    tokenized : bool, default=False
        As for `scoring.protocols.score`.
    """
    if target_lang == TREES:
        return ParsingEvaluation(split=text.split, **parsing.score(text.sources or [], outputs, text.references))
    scores = protocols.score(outputs, text.references, target_lang, lowercase, tokenized)
    return TranslationEvaluation(split=text.split, **scores)


def check_is_scored(target_lang: str, tokenized: bool = False) -> None:
    """Refuse a language that sacreBLEU cannot divide here, before anything is translated.

    Raises
    ------
    UserError
        If a package is missing, with its name.
    """
    try:
        protocols.todays_bleu(tokenized=tokenized, target_lang=target_lang)
    except ValueError as error:
        raise UserError(str(error)) from error


def describe_decoding(model: PreTrainedModel, given: dict[str, Any]) -> str:
    """Name the search that `translate` does with the arguments that are given, such as "beam 4, alpha 0.6"."""
    defaults = model.generation_config
    names = ("do_sample", "length_penalty", "min_new_tokens")
    settings = {name: given.get(name, getattr(defaults, name, None)) for name in names}
    asked = DecodingSettings.read(given, None, defaults)
    beams = asked.num_beams
    words = [("sampling" if settings["do_sample"] else "greedy") if beams == 1 else f"beam {beams}"]
    if beams > 1 and hasattr(model, "decoder_state") and asked.length_penalty_alpha is not None:
        words.append(f"alpha {asked.length_penalty_alpha}")
    elif beams > 1:
        penalty = settings["length_penalty"]
        words.append(f"length_penalty {1.0 if penalty is None else penalty}")
    if settings["min_new_tokens"]:
        words.append(f"at least {settings['min_new_tokens']} token(s)")
    if "max_new_tokens" in given:
        words.append(f"at most {given['max_new_tokens']} tokens")
    if hasattr(model, "engine"):
        words.append(str(model.engine))
    elif is_quantized(model):
        words.append("int8")
    if hasattr(model, "members"):
        words.append(f"ensemble of {len(model.members)}")
    words += [word for name, word in (("constraint", "trees only"), ("shortlist", "shortlist")) if given.get(name)]
    return ", ".join(words)
