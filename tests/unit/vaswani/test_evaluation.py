import dataclasses
import json

import pytest
import torch
from marian_twin import marian_twin

from vaswani.evaluation import Evaluation, describe_decoding, encode_pairs, evaluate, negative_log_likelihood
from vaswani.scoring.references import EvaluationSet
from vaswani.tokenization import train_tokenizer


SENTENCES = ["one two", "", "three", "one two three four five six", "", "two"]
TEXT = EvaluationSet("text", "test", SENTENCES, SENTENCES)


@pytest.fixture
def tokenizer():
    return train_tokenizer(["one two three four five six"], 265)


@pytest.fixture
def model(random_model, tiny_config):
    return random_model(tiny_config(vocab_size=265))


def likelihood_one_by_one(model, tokenizer, text):
    total = pieces = 0.0
    for pair in zip(text.sources, text.references, strict=True):
        source, target = (tokenizer(side, return_tensors="pt").input_ids for side in pair)
        logits = model(source, labels=target).logits.double().log_softmax(-1)
        total -= logits.gather(-1, target[..., None]).sum().item()
        pieces += target.numel()
    return total / pieces


def test_an_evaluation_takes_empty_sentences_and_leaves_the_model_as_it_was(model, tokenizer):
    model.train()
    evaluation, translations = evaluate(model, tokenizer, TEXT, encode_pairs(tokenizer, TEXT), 100, num_beams=1)
    assert model.training
    assert (evaluation.sentences, len(translations), evaluation.paper_bleu) == (6, 6, None)
    assert evaluation.nll > 0
    assert (evaluation.split, evaluation.decoding, translations[1]) == ("test", "greedy", "")


def test_dropout_is_off(random_model, tiny_config, tokenizer):
    model = random_model(tiny_config(vocab_size=265, dropout=0.5, attention_dropout=0.5)).train()
    pairs = encode_pairs(tokenizer, TEXT)
    first, second = (evaluate(model, tokenizer, TEXT, pairs, 100, num_beams=1)[0].nll for _ in range(2))
    assert first == second


@pytest.mark.parametrize("max_tokens", [1, 10, 1000])
def test_perplexity_is_that_of_the_pieces_one_by_one(model, tokenizer, max_tokens):
    text = EvaluationSet("", "test", ["one two", "six", "two"], ["three four five", "one", "two six " * 9])
    expected = likelihood_one_by_one(model, tokenizer, text)
    pairs = encode_pairs(tokenizer, text)
    assert negative_log_likelihood(model, pairs, max_tokens) == pytest.approx(expected, abs=1e-5)
    evaluation, _ = evaluate(model, tokenizer, text, pairs, max_tokens, num_beams=1)
    assert evaluation.perplexity == pytest.approx(torch.tensor(expected).exp().item(), rel=1e-3)


def test_pairs_are_computed_within_the_budget(model, tokenizer, monkeypatch):
    sizes = []
    forward = type(model).forward

    def watched(self, input_ids, *args, **kwargs):
        sizes.append((len(input_ids), max(input_ids.shape[1], kwargs["decoder_input_ids"].shape[1])))
        return forward(self, input_ids, *args, **kwargs)

    monkeypatch.setattr(type(model), "forward", watched)
    text = EvaluationSet("", "test", ["one two three " * n for n in range(1, 9)], ["six"] * 8)
    pairs = encode_pairs(tokenizer, text)
    longest = max(len(source) for source, _ in pairs)
    negative_log_likelihood(model, pairs, 2 * longest)
    assert all(rows * length <= 2 * longest for rows, length in sizes)
    assert (sum(rows for rows, _ in sizes), len(sizes) < 8) == (8, True)


def test_long_pairs_count_and_empty_ones_do_not(tokenizer):
    text = EvaluationSet("", "test", ["one " * 300, "", "two"], ["eins " * 300, "x", " "])
    [(source, target)] = encode_pairs(tokenizer, text)
    assert min(len(source), len(target)) > 300


def test_sources_that_are_cut_are_counted(model, tokenizer):
    text = EvaluationSet("", "test", ["one two three four", "one"], ["one", "two"])
    evaluation, _ = evaluate(model, tokenizer, text, encode_pairs(tokenizer, text), 100, max_source_length=5)
    lengths = [len(ids) for ids in tokenizer(text.sources).input_ids]
    assert evaluation.truncated_sources == sum(length > 5 for length in lengths) == 1


def test_a_row_leaves_out_what_does_not_apply_and_says_what_is_not_known(model, tokenizer):
    evaluation, _ = evaluate(model, tokenizer, TEXT, encode_pairs(tokenizer, TEXT), 100, num_beams=1)
    row = evaluation.to_row()
    assert list(row) == [
        "split", "nll", "perplexity", "sacrebleu", "sacrebleu_lowercased", "chrf", "paper_bleu",
        "paper_bleu_without_split", "exact_match", "sacrebleu_signature", "chrf_signature", "paper_bleu_signature",
        "sentences", "decoding", "seconds",
    ]  # fmt: skip
    assert json.loads(json.dumps(row))["paper_bleu"] is None
    weights = dataclasses.replace(evaluation, checkpoint="somebody/model").to_row()
    assert (weights["step"], weights["averaged_checkpoints"], weights["checkpoint"]) == (None, None, "somebody/model")
    with pytest.raises(dataclasses.FrozenInstanceError):
        evaluation.nll = 0.0  # ty: ignore[invalid-assignment]
    assert {field.name for field in dataclasses.fields(Evaluation)} >= set(row)


def test_the_decoding_is_named(model):
    assert describe_decoding(model, {}) == "greedy"
    assert describe_decoding(model, {"num_beams": 4, "length_penalty_alpha": 0.6}) == "beam 4, alpha 0.6"
    assert describe_decoding(model, {"num_beams": 2, "max_new_tokens": 9}) == "beam 2, alpha 0.6, at most 9 tokens"
    assert describe_decoding(model, {"num_beams": 2, "length_penalty": 1.0}) == "beam 2, length_penalty 1.0"
    assert describe_decoding(marian_twin(model), {"num_beams": 2}) == "beam 2, length_penalty 1.0"
