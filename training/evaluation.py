"""Judge a model on a split: teacher-forced likelihood, and translations against their references."""

import time
from collections.abc import Sequence
from typing import Any

import sacrebleu
import torch
from datasets import Dataset
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from training.batching import collate, plan_epoch
from training.loss import label_smoothed_sums
from vaswani.pipeline_vaswani import EXTRA_TARGET_TOKENS


@torch.no_grad()
def translate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    max_tokens: int = 4096,
    **generate_kwargs: Any,
) -> list[str]:
    """Translate sentences, sorted by length into batches of at most `max_tokens` padded source tokens.

    Returns
    -------
    list of str
        In the order of `sentences`.
    """
    encoded = tokenizer(list(sentences)).input_ids
    order = sorted(range(len(encoded)), key=lambda index: -len(encoded[index]))
    translations = [""] * len(encoded)
    progress = tqdm(total=len(encoded), desc="Translating", unit="sentence", leave=False)
    while order:
        longest = len(encoded[order[0]])
        size = max(1, max_tokens // longest)
        indices, order = order[:size], order[size:]
        batch = collate([encoded[index] for index in indices], [[]] * len(indices), tokenizer.pad_token_id)
        output = model.generate(
            input_ids=batch.input_ids.to(model.device),
            attention_mask=batch.attention_mask.to(model.device),
            **({"max_new_tokens": longest + EXTRA_TARGET_TOKENS} | generate_kwargs),
        )
        for index, text in zip(indices, tokenizer.batch_decode(output, skip_special_tokens=True), strict=True):
            translations[index] = text
        progress.update(len(indices))
    progress.close()
    return translations


@torch.no_grad()
def negative_log_likelihood(model: PreTrainedModel, encoded: Dataset, max_tokens: int) -> float:
    """Return the mean over target tokens of -ln p(token), teacher-forced and not smoothed."""
    lengths = encoded.with_format("numpy")
    plan = plan_epoch(lengths["source_length"][:], lengths["target_length"][:], max_tokens, seed=0, epoch=0)
    nll = tokens = 0.0
    for indices in plan:
        rows = encoded[indices]
        batch = collate(rows["input_ids"], rows["labels"], model.config.pad_token_id)
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
) -> tuple[dict[str, Any], list[str]]:
    """Judge a model on one split: all of its text is translated, its usable pairs give the likelihood.

    Returns
    -------
    row : dict
        `nll`, what `score` returns, `decoding`, and `seconds`.
    translations : list of str
    """
    started = time.perf_counter()
    training = model.training
    model.eval()
    nll = negative_log_likelihood(model, encoded, max_tokens)
    sources, references = ([sentence or "" for sentence in text[side]] for side in ("source", "target"))
    translations = translate(model, tokenizer, sources, do_sample=False, num_beams=1)
    model.train(training)
    row = {"nll": round(nll, 4), **score(translations, references), "decoding": "greedy"}
    return row | {"seconds": round(time.perf_counter() - started, 1)}, translations
