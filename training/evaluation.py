"""Judge a model on a split: teacher-forced likelihood, and translations against their references."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import sacrebleu
import torch
from datasets import Dataset
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from training.batching import collate, cut, plan_epoch
from training.data import lengths, read_pairs
from training.loss import label_smoothed_sums
from training.stopping import Interrupted
from vaswani.pipeline_vaswani import EXTRA_TARGET_TOKENS


@torch.no_grad()
def translate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    max_tokens: int = 4096,
    stop: Callable[[], str | None] = lambda: None,
    **generate_kwargs: Any,
) -> list[str]:
    """Translate sentences, sorted by length into batches of at most `max_tokens` padded source tokens.

    Returns
    -------
    list of str
        In the order of `sentences`.

    Raises
    ------
    Interrupted
        As soon as `stop` gives a reason.
    """
    encoded = tokenizer(list(sentences)).input_ids
    order = sorted(range(len(encoded)), key=lambda index: -len(encoded[index]))
    translations = [""] * len(encoded)
    progress = tqdm(total=len(encoded), desc="Translating", unit="sentence", leave=False)
    while order:
        _raise_if(stop())
        longest = len(encoded[order[0]])
        size = max(1, max_tokens // longest)
        indices, order = order[:size], order[size:]
        batch = tokenizer.pad({"input_ids": [encoded[index] for index in indices]}, return_tensors="pt")
        output = model.generate(
            **batch.to(model.device),
            **({"max_new_tokens": longest + EXTRA_TARGET_TOKENS} | generate_kwargs),
        )
        for index, text in zip(indices, tokenizer.batch_decode(output, skip_special_tokens=True), strict=True):
            translations[index] = text
        progress.update(len(indices))
    progress.close()
    return translations


def _raise_if(reason: str | None) -> None:
    if reason is not None:
        raise Interrupted(reason)


@torch.no_grad()
def negative_log_likelihood(
    model: PreTrainedModel, encoded: Dataset, max_tokens: int, stop: Callable[[], str | None] = lambda: None
) -> float:
    """Return the mean over target tokens of -ln p(token), teacher-forced and not smoothed."""
    sides = lengths(encoded)
    plan = plan_epoch(*sides, max_tokens, seed=0, epoch=0)
    nll = tokens = 0.0
    for indices in (batch for groups in plan for batch in cut(groups, *sides, max_tokens)):
        _raise_if(stop())
        batch = collate(*read_pairs(encoded, indices), model.config.pad_token_id)
        input_ids, attention_mask, labels = (tensor.to(model.device) for tensor in batch)
        decoder_input_ids = model.prepare_decoder_input_ids_from_labels(labels)
        logits = model(input_ids, attention_mask, decoder_input_ids=decoder_input_ids, use_cache=False).logits
        sums = label_smoothed_sums(logits, labels, 0.0)
        nll, tokens = nll + sums.nll.item(), tokens + sums.tokens.item()
    return nll / tokens


def score(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Score translations with sacreBLEU's BLEU, cased and lowercased, chrF, and the share that equals the reference.

    Raises
    ------
    ValueError
        If the numbers of sentences differ.
    """
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses but {len(references)} references: the numbers must be equal")
    bleu, lowercased = sacrebleu.BLEU(), sacrebleu.BLEU(lowercase=True)
    row = {
        "sacrebleu": bleu.corpus_score(hypotheses, [references]).score,
        "sacrebleu_lowercased": lowercased.corpus_score(hypotheses, [references]).score,
        "chrf": sacrebleu.CHRF().corpus_score(hypotheses, [references]).score,
        "exact_match": 100 * sum(map(str.__eq__, hypotheses, references)) / len(references),
    }
    row = {name: round(value, 2) for name, value in row.items()}
    return row | {"sacrebleu_signature": str(bleu.get_signature()), "sentences": len(references)}


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: Dataset,
    encoded: Dataset,
    max_tokens: int,
    stop: Callable[[], str | None] = lambda: None,
) -> tuple[dict[str, Any], list[str]]:
    """Judge a model on one split: all of its text is translated, its usable pairs give the likelihood.

    Returns
    -------
    row : dict
        `nll`, what `score` returns, `decoding`, and `seconds`.
    translations : list of str

    Raises
    ------
    Interrupted
        As soon as `stop` gives a reason.
    """
    started = time.perf_counter()
    training = model.training
    model.eval()
    try:
        nll = negative_log_likelihood(model, encoded, max_tokens, stop)
        sources, references = ([sentence or "" for sentence in text[side]] for side in ("source", "target"))
        translations = translate(model, tokenizer, sources, stop=stop, do_sample=False, num_beams=1)
    finally:
        model.train(training)
    row = {"nll": round(nll, 4), **score(translations, references), "decoding": "greedy"}
    return row | {"seconds": round(time.perf_counter() - started, 1)}, translations
