"""Judge a model on a split: teacher-forced likelihood, and translations against their references."""

import math
import time
from typing import Any

import torch
from datasets import Dataset
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from training.data.batch_plan import collate, cut, plan_epoch
from training.data.preparation import lengths, read_pairs
from training.objective.loss import label_smoothed_sums
from vaswani.models.generation_vaswani import DecodingSettings, VaswaniGenerationMixin
from vaswani.scoring.scoring import TranslationScores
from vaswani.translation import translate


@torch.no_grad()
def negative_log_likelihood(model: PreTrainedModel, encoded: Dataset, max_tokens: int) -> float:
    """Return the mean over target tokens of -ln p(token), teacher-forced and not smoothed."""
    sides = lengths(encoded)
    plan = plan_epoch(*sides, max_tokens, seed=0, epoch=0)
    nll = tokens = 0.0
    for indices in (batch for groups in plan for batch in cut(groups, *sides, max_tokens)):
        batch = collate(*read_pairs(encoded, indices), model.config.pad_token_id)
        input_ids, attention_mask, labels = (tensor.to(model.device) for tensor in batch)
        decoder_input_ids = model.prepare_decoder_input_ids_from_labels(labels)
        logits = model(input_ids, attention_mask, decoder_input_ids=decoder_input_ids, use_cache=False).logits
        sums = label_smoothed_sums(logits, labels, 0.0)
        nll, tokens = nll + sums.nll.item(), tokens + sums.tokens.item()
    return nll / tokens


def translate_all(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: list[str],
    **kwargs: Any,
) -> list[str]:
    """Return the best translation of each sentence, showing how far it has come; `kwargs` as for `translate`."""
    with tqdm(total=len(sentences), desc="Translating", unit=" sentences", leave=False) as progress:
        results = translate(model, tokenizer, sentences, on_batch=progress.update, **kwargs)
    return [best.text for best, *_ in results]


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: Dataset,
    encoded: Dataset,
    max_tokens: int,
    target_lang: str | None = None,
    lowercase: bool = False,
    max_source_length: int | None = None,
    **kwargs: Any,
) -> tuple[dict[str, Any], list[str]]:
    """Judge a model on one split: all of its text is translated, its usable pairs give the likelihood.

    Parameters
    ----------
    model, tokenizer, text, encoded
        `text` has columns `source` and `target`, `encoded` what `encode` made of it.
    max_tokens : int
        Positions to compute at a time for the likelihood.
    target_lang, lowercase
        As for the metric.
    max_source_length : int or None, default=None
        Translate longer sources only up to here, in tokens with ``</s>``.
    **kwargs
        As for `translate`.

    Returns
    -------
    row : dict
        `nll` and its exponential `perplexity` (of a word piece, unsmoothed, as in Table 3), what the metric returns,
        `decoding`, `truncated_sources` (how many were longer than `max_source_length`), and `seconds`.
    translations : list of str
    """
    started = time.perf_counter()
    training = model.training
    model.eval()
    try:
        nll = negative_log_likelihood(model, encoded, max_tokens)
        sources, references = ([sentence or "" for sentence in text[side]] for side in ("source", "target"))
        translations = translate_all(model, tokenizer, sources, max_source_length=max_source_length, **kwargs)
    finally:
        model.train(training)
    scores = TranslationScores(keep_in_memory=True).compute(
        predictions=translations, references=references, target_lang=target_lang, lowercase=lowercase
    )
    row = {"nll": round(nll, 4), "perplexity": round(math.exp(min(nll, 100.0)), 3), **scores}
    row["decoding"] = describe_decoding(model, kwargs)
    if max_source_length is not None:
        lengths_of_sources = map(len, tokenizer(sources, verbose=False).input_ids)
        row["truncated_sources"] = sum(length > max_source_length for length in lengths_of_sources)
    return row | {"seconds": round(time.perf_counter() - started, 1)}, translations


def describe_decoding(model: PreTrainedModel, given: dict[str, Any]) -> str:
    """Name the search that `generate()` does with what was given to it, such as "beam 4, alpha 0.6"."""
    defaults = model.generation_config
    settings = {name: given.get(name, getattr(defaults, name, None)) for name in ("do_sample", "length_penalty")}
    asked = DecodingSettings.read(given, None, defaults)
    beams = asked.num_beams
    words = [("sampling" if settings["do_sample"] else "greedy") if beams == 1 else f"beam {beams}"]
    if beams > 1 and isinstance(model, VaswaniGenerationMixin) and asked.length_penalty_alpha is not None:
        words.append(f"alpha {asked.length_penalty_alpha}")
    elif beams > 1:
        penalty = settings["length_penalty"]
        words.append(f"length_penalty {1.0 if penalty is None else penalty}")
    if "max_new_tokens" in given:
        words.append(f"at most {given['max_new_tokens']} tokens")
    return ", ".join(words)
