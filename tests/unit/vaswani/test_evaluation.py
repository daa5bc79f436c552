import dataclasses
import json
import math

import pytest
import small_parser
import torch
from marian_twin import marian_twin
from opus_model import save_vocabulary
from transformers import AutoTokenizer

from vaswani.errors import UserError
from vaswani.evaluation import describe_decoding, encode_in_batches, evaluate, negative_log_likelihood
from vaswani.models.int8_vaswani import kernel_problem
from vaswani.models.trees_vaswani import linearize
from vaswani.parsing.treebank import read_trees
from vaswani.results import ParsingEvaluation, TranslationEvaluation
from vaswani.scoring.references import EvaluationSet


SENTENCES = ["one two", "", "three", "one two three four five six", "", "two"]
TEXT = EvaluationSet("text", "test", SENTENCES, SENTENCES)


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
    evaluation, translations = evaluate(model, tokenizer, TEXT, encode_in_batches(tokenizer, TEXT, 100), num_beams=1)
    assert model.training
    assert (evaluation.sentences, len(translations), evaluation.paper_bleu) == (6, 6, None)
    assert evaluation.nll > 0
    assert (evaluation.split, evaluation.decoding, translations[1]) == ("test", "greedy", "")


def test_one_translation_is_scored_even_if_the_models_settings_ask_for_several(model, tokenizer):
    settings = {"num_beams": 1, "max_new_tokens": 5}
    expected = evaluate(model, tokenizer, TEXT, encode_in_batches(tokenizer, TEXT, 100), **settings)[1]
    model.generation_config.update(num_beams=3, num_return_sequences=2)
    assert evaluate(model, tokenizer, TEXT, encode_in_batches(tokenizer, TEXT, 100), **settings)[1] == expected


def test_dropout_is_off(random_model, tiny_config, tokenizer):
    model = random_model(tiny_config(vocab_size=265, dropout=0.5, attention_dropout=0.5)).train()
    batches = list(encode_in_batches(tokenizer, TEXT, 100))
    first, second = (evaluate(model, tokenizer, TEXT, batches, num_beams=1)[0].nll for _ in range(2))
    assert first == second


def test_references_are_encoded_as_targets(tmp_path):
    """OPUS-MT's tokenizer has another SentencePiece model for them."""
    save_vocabulary(tmp_path)
    tokenizer, words = AutoTokenizer.from_pretrained(tmp_path), "zwei klein Hunde ."
    [(input_ids, _, labels)] = encode_in_batches(tokenizer, EvaluationSet("", "test", [words], [words]), 100)
    assert input_ids[0].tolist() == tokenizer(words).input_ids
    assert labels[0].tolist() == tokenizer(text_target=words).input_ids != input_ids[0].tolist()


@pytest.mark.parametrize("max_tokens", [1, 10, 1000])
def test_perplexity_is_that_of_the_pieces_one_by_one(model, tokenizer, max_tokens):
    text = EvaluationSet("", "test", ["one two", "six", "two"], ["three four five", "one", "two six " * 9])
    expected = likelihood_one_by_one(model, tokenizer, text)
    batches = list(encode_in_batches(tokenizer, text, max_tokens))
    assert negative_log_likelihood(model, batches) == pytest.approx(expected, abs=1e-5)
    evaluation, _ = evaluate(model, tokenizer, text, batches, num_beams=1)
    assert evaluation.perplexity == pytest.approx(torch.tensor(expected).exp().item(), rel=1e-3)


def test_batches_are_within_the_budget_and_hold_every_pair_once(tokenizer):
    text = EvaluationSet("", "test", ["one two three " * n for n in range(1, 9)], [f"six {n}" for n in range(8)])
    sources, references = (tokenizer(side).input_ids for side in (text.sources, text.references))
    longest = max(map(len, sources))
    found = []
    for input_ids, attention_mask, labels in encode_in_batches(tokenizer, text, 2 * longest):
        assert max(input_ids.numel(), labels.numel()) <= 2 * longest
        assert (input_ids[attention_mask == 0] == tokenizer.pad_token_id).all()
        found += [
            (row[mask == 1].tolist(), label[label != -100].tolist())
            for row, mask, label in zip(input_ids, attention_mask, labels, strict=True)
        ]
    assert sorted(found) == sorted(zip(sources, references, strict=True))


def test_pairs_that_a_table_of_positions_does_not_hold_are_left_out_and_counted(tokenizer):
    text, said = EvaluationSet("", "test", ["one", "two " * 9, "six"], ["six " * 9, "one", "two"]), []
    longest = len(tokenizer("six").input_ids)
    [(input_ids, _, labels)] = encode_in_batches(tokenizer, text, 100, longest, said.append)
    assert (input_ids.shape, labels.shape) == ((1, longest), (1, longest))
    assert said == [f"2 of 3 pairs are longer than the model's {longest} positions: the likelihood leaves them out"]
    with pytest.raises(UserError, match=r"^3 of 3 pairs are longer than the model's 1 positions: nothing is left to"):
        list(encode_in_batches(tokenizer, text, 100, 1, said.append))


def test_the_longer_side_of_a_pair_fills_a_batch(tokenizer):
    text = EvaluationSet("", "test", ["six"] * 8, ["one two three " * 5] * 8)
    longest = len(tokenizer(text.references[0]).input_ids)
    sizes = [labels.numel() for _, _, labels in encode_in_batches(tokenizer, text, 2 * longest)]
    assert sizes == [2 * longest] * 4


def test_a_likelihood_beyond_all_numbers_is_still_written_down(model, tokenizer, monkeypatch):
    monkeypatch.setattr("vaswani.evaluation.negative_log_likelihood", lambda model, batches: 1000.0)
    evaluation, _ = evaluate(model, tokenizer, TEXT, [], num_beams=1, max_new_tokens=1)
    assert (evaluation.nll, evaluation.perplexity) == (1000.0, round(math.exp(100), 3))


def test_long_pairs_count_and_empty_ones_do_not(tokenizer):
    text = EvaluationSet("", "test", ["one " * 300, "", "two"], ["eins " * 300, "x", " "])
    [(input_ids, _, labels)] = encode_in_batches(tokenizer, text, 10)
    assert min(input_ids.shape[1], labels.shape[1]) > 300


def test_sources_that_are_cut_are_counted(model, tokenizer):
    text = EvaluationSet("", "test", ["one two three four", "one"], ["one", "two"])
    evaluation, _ = evaluate(model, tokenizer, text, encode_in_batches(tokenizer, text, 100), max_source_length=5)
    lengths = [len(ids) for ids in tokenizer(text.sources).input_ids]
    assert evaluation.truncated_sources == sum(length > 5 for length in lengths) == 1


def test_a_row_leaves_out_what_does_not_apply_and_says_what_is_not_known(model, tokenizer):
    evaluation, _ = evaluate(model, tokenizer, TEXT, encode_in_batches(tokenizer, TEXT, 100), num_beams=1)
    row = evaluation.to_row()
    assert list(row) == [
        "split", "nll", "perplexity", "exact_match", "sentences", "decoding", "seconds",
        "sacrebleu", "sacrebleu_lowercased", "chrf", "paper_bleu", "paper_bleu_without_split",
        "sacrebleu_signature", "chrf_signature", "paper_bleu_signature",
    ]  # fmt: skip
    assert json.loads(json.dumps(row))["paper_bleu"] is None
    weights = dataclasses.replace(evaluation, checkpoint="somebody/model").to_row()
    assert (weights["step"], weights["averaged_checkpoints"], weights["checkpoint"]) == (None, None, "somebody/model")
    with pytest.raises(dataclasses.FrozenInstanceError):
        evaluation.nll = 0.0  # ty: ignore[invalid-assignment]
    assert {field.name for field in dataclasses.fields(TranslationEvaluation)} >= set(row)


@pytest.mark.parametrize("tokenized", [False, True])
def test_translations_look_tokenized_only_where_they_ought_not_to_be(
    tokenized, model, tokenizer, monkeypatch, recwarn
):
    text = EvaluationSet("", "test", ["one two", "one"], ["eins zwei", "eins"])
    monkeypatch.setattr("vaswani.evaluation.translate_all", lambda *given, **how: ["ei@@ ns", ""])
    evaluate(model, tokenizer, text, encode_in_batches(tokenizer, text, 100), "de", tokenized=tokenized)
    said = [str(warning.message) for warning in recwarn if "hypotheses" in str(warning.message)]
    assert "1 of 2 hypotheses are empty" in said[0]
    assert ["hold @@" in sentence for sentence in said[1:]] == ([] if tokenized else [True])


def test_translations_of_tokenized_text_are_counted_by_their_tokens(model, tokenizer, recwarn):
    text = EvaluationSet("", "test", ["one two"], ["eins &quot; ."])
    batches = encode_in_batches(tokenizer, text, 100)
    evaluation, _ = evaluate(model, tokenizer, text, batches, "de", tokenized=True, num_beams=1)
    assert "tok:none|smooth:none" in evaluation.sacrebleu_signature
    assert evaluation.paper_bleu is None


def test_the_decoding_is_named(model):
    assert describe_decoding(model, {}) == "greedy"
    assert describe_decoding(model, {"num_beams": 4, "length_penalty_alpha": 0.6}) == "beam 4, alpha 0.6"
    assert describe_decoding(model, {"num_beams": 2, "max_new_tokens": 9}) == "beam 2, alpha 0.6, at most 9 tokens"
    assert describe_decoding(model, {"num_beams": 1, "min_new_tokens": 1}) == "greedy, at least 1 token(s)"
    assert describe_decoding(model, {"num_beams": 2, "length_penalty": 1.0}) == "beam 2, length_penalty 1.0"
    assert describe_decoding(model, {"num_beams": 1, "shortlist": sorted}) == "greedy, shortlist"
    assert describe_decoding(model, {"constraint": sorted, "shortlist": None}) == "greedy, trees only"
    assert describe_decoding(marian_twin(model), {"num_beams": 2}) == "beam 2, length_penalty 1.0"
    if kernel_problem() is None:
        assert describe_decoding(model.quantize(), {}) == "greedy, int8"


def test_what_the_models_own_settings_ask_for_is_named_too(model):
    model.generation_config.update(do_sample=True, min_new_tokens=2)
    assert describe_decoding(model, {}) == "sampling, at least 2 token(s)"
    model.generation_config.length_penalty = 1.2
    assert describe_decoding(model, {"num_beams": 2}) == "beam 2, length_penalty 1.2, at least 2 token(s)"
    assert describe_decoding(model, {"num_beams": 2, "length_penalty": 2.0, "min_new_tokens": 0}) == (
        "beam 2, length_penalty 2.0"
    )


def test_parses_are_scored_as_trees_constrained_or_not(tmp_path):
    path = tmp_path / "trees"
    path.write_text("".join(tree + "\n" for tree in small_parser.TREES))
    parser, tokenizer = small_parser.make_parser(), small_parser.make_tokenizer()
    text = EvaluationSet("treebank", "test", small_parser.SENTENCES, [linearize(tree) for tree in read_trees(path)])
    legal, outputs = evaluate(parser, tokenizer, text, encode_in_batches(tokenizer, text, 100), "tree")
    free, _ = evaluate(parser, tokenizer, text, encode_in_batches(tokenizer, text, 100), "tree", constrained=False)
    assert isinstance(free, ParsingEvaluation)
    assert isinstance(legal, ParsingEvaluation)
    assert (free.nll, free.sentences, len(outputs)) == (legal.nll, 4, 4)
    assert free.well_formed is not None
    assert free.well_formed < legal.well_formed == 100
    assert (free.decoding, legal.decoding) == ("greedy", "greedy, trees only")
    assert legal.evalb_errors == 0
