"""CTranslate2 of our weights: the scores and the translations of our own model."""

import sys
from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationConfig

from vaswani.errors import UserError
from vaswani.interop import ctranslate2 as module
from vaswani.interop.ctranslate2 import (
    CTranslate2Model,
    check_settings,
    load_ctranslate2,
    save_for_ctranslate2,
    supported_types,
)
from vaswani.interop.engines import load_engine
from vaswani.interop.verification import log_probabilities
from vaswani.translation import translate


pytest.importorskip("ctranslate2")
SENTENCES = ["one two", "six", "three four five one two", "", "two two"]
LIMIT = {"max_new_tokens": 12}  # random weights find no end


VARIANTS = [{}, {"position_embedding_type": "learned", "max_position_embeddings": 70, "layer_norm_eps": 0.1}]


@pytest.fixture(params=VARIANTS, ids=str)
def ours(request, random_model):
    return random_model(vocab_size=265, **request.param)


@pytest.fixture
def theirs(ours, tokenizer, tmp_path):
    save_for_ctranslate2(ours, tokenizer, tmp_path)
    return CTranslate2Model(tmp_path)


def test_a_device_that_is_not_there_and_an_alpha_without_beams_are_told(theirs, tokenizer, monkeypatch):
    with pytest.raises(UserError, match="device='abacus' must be a device of this machine: "):
        supported_types("abacus")
    said = []
    monkeypatch.setattr(module.logger, "warning_once", said.append)
    translate(theirs, tokenizer, ["one"], num_beams=1, length_penalty_alpha=3.0, **LIMIT)
    assert said == ["length_penalty_alpha=3.0 has no effect with num_beams=1: it is for beam search"]


def test_log_probabilities_are_ours(ours, theirs, batch):
    inputs = batch(ours.config)
    labels = inputs["labels"].masked_fill(inputs["labels"] == -100, 0)
    labels[1, 2] = 0  # </s>: behind it CTranslate2 scores nothing
    mask = torch.ones_like(inputs["input_ids"])
    ids = inputs["input_ids"].masked_fill(inputs["input_ids"] == 264, 1)
    mine, other = (log_probabilities(model, ids, mask, labels) for model in (ours, theirs))
    is_scored = torch.cat([torch.zeros_like(labels[:, :1]), (labels == 0).cumsum(1)[:, :-1]], 1) == 0
    torch.testing.assert_close(other[is_scored], mine[is_scored], atol=1e-4, rtol=1e-4)
    assert (other[~is_scored] == 0).all()
    assert not is_scored.all()


@pytest.mark.parametrize("settings", [{"num_beams": 1}, {"num_beams": 3, "num_return_sequences": 2}], ids=str)
def test_translations_and_their_scores_are_ours(ours, theirs, tokenizer, settings):
    mine, other = (
        translate(model, tokenizer, SENTENCES, with_scores=True, max_new_tokens=12, **settings)
        for model in (ours, theirs)
    )
    assert len(mine) == len(SENTENCES)
    for expected, found in zip(mine, other, strict=True):
        assert [each.text for each in found] == [each.text for each in expected]
        # Its softmax is without <pad>, whose probability is about 1 / 265 here, 12 times.
        assert [each.score for each in found] == pytest.approx([each.score for each in expected], abs=0.05)


@pytest.mark.parametrize(("at_least", "num_beams"), [(None, 1), (None, 3), (1, 1), (1, 3), (20, 1)])
def test_a_translation_may_be_as_short_as_ours(at_least, num_beams, random_model, tokenizer, tmp_path):
    ours = random_model(vocab_size=265, lm_head_bias=True)
    ours.lm_head.bias.data = 9.0 * (torch.arange(265) == 0)  # to end at once
    ours.generation_config.min_new_tokens = at_least
    save_for_ctranslate2(ours, tokenizer, tmp_path)
    theirs, how = CTranslate2Model(tmp_path), {"num_beams": num_beams, "max_new_tokens": 12}
    mine, other = (translate(model, tokenizer, SENTENCES, **how) for model in (ours, theirs))
    assert [each[0].text for each in other] == [each[0].text for each in mine]
    assert [each[0].text == "" for each in mine] == [at_least is None or not sentence for sentence in SENTENCES]
    words = translate(theirs, tokenizer, SENTENCES, **how, min_new_tokens=1)
    assert [each[0].text == "" for each in words] == [not sentence for sentence in SENTENCES]


def test_ranking_is_the_papers(theirs):
    """The first hypothesis has 2 tokens, the second 5, each with its </s>."""
    result = SimpleNamespace(scores=[-2.0 / 2**0.5, -2.2 / 5**0.5], hypotheses=[["a"], ["a", "b", "a", "b"]])
    order = {alpha: [len(ids) for _, ids in theirs._ranked(result, 9, 0.5, alpha)] for alpha in (0.0, 0.6)}
    assert order == {0.0: [2, 5], 0.6: [5, 2]}
    (score, ids), _ = theirs._ranked(result, 9, 0.5, 0.6)
    assert score == pytest.approx(-2.2 / (10 / 6) ** 0.6)
    assert ids[-1] == 0
    cut_off = theirs._ranked(result, 4, 0.5, 0.6)[0][1]
    assert (len(cut_off), cut_off[-1]) == (4, ids[3])


def test_what_is_cut_off_is_ranked_by_its_whole_length(theirs, tokenizer):
    """Each sentence has its own limit, but CTranslate2 the longest of them for all."""
    found = SimpleNamespace(scores=[-2.0, -2.5], hypotheses=[["a"] * 5, ["a"] * 6])
    theirs.translator = SimpleNamespace(translate_batch=lambda sources, **settings: [found] * len(sources))
    theirs.generation_config.extra_target_tokens = 2
    inputs = tokenizer(["one", "one two three four five"], padding=True, return_tensors="pt")
    settings = {"return_dict_in_generate": True, "num_return_sequences": 2}
    output = theirs.generate(inputs.input_ids, inputs.attention_mask, num_beams=2, **settings)
    assert output.sequences_scores[:2].equal(output.sequences_scores[2:])
    assert ((output.sequences[:2, 1:] != 264).sum(1) <= inputs.attention_mask[0].sum() + 2).all()


def test_lengths_are_limited_for_each_sentence(theirs, tokenizer):
    theirs.generation_config.extra_target_tokens = 2
    inputs = tokenizer(["one", "one two three four five"], padding=True, return_tensors="pt")
    lengths = inputs.attention_mask.sum(1) + 2
    output = theirs.generate(inputs.input_ids, inputs.attention_mask, num_beams=1)
    assert ((output[:, 1:] != 264).sum(1) <= lengths).all()
    through_translate = translate(theirs, tokenizer, ["one", "one two three four five"], num_beams=1)
    texts = tokenizer.batch_decode(output, skip_special_tokens=True)
    assert [each[0].text for each in through_translate] == texts
    shorter = theirs.generate(inputs.input_ids, inputs.attention_mask, num_beams=1, max_new_tokens=1)
    assert shorter.shape == (2, 2)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_minimum_above_the_limit_of_a_sentence_raises_it(ours, theirs, tokenizer, num_beams):
    inputs = tokenizer(["one", "one two three four five"], padding=True, return_tensors="pt")
    for model in (ours, theirs):
        model.generation_config.extra_target_tokens = 2
        output = model.generate(**inputs, num_beams=num_beams, min_new_tokens=30)
        assert ((output[:, 1:] != 264).sum(1) == 30).all()
    shorter = theirs.generate(**inputs, max_new_tokens=4, min_new_tokens=30)
    assert shorter.shape == (2, 5)


def test_a_folder_has_all_that_is_needed(random_model, tokenizer, tmp_path):
    ours = random_model(vocab_size=265, source_lang="en", target_lang="de")
    ours.generation_config.length_penalty_alpha, ours.generation_config.num_beams = 0.9, 3
    save_for_ctranslate2(ours, tokenizer, tmp_path, "int8")
    model, loaded = load_engine("ctranslate2", str(tmp_path), device="cpu", workers=1)
    assert loaded("two six").input_ids == tokenizer("two six").input_ids
    assert (model.config.source_lang, model.config.vocab_size) == ("en", 265)
    assert (model.generation_config.length_penalty_alpha, model.generation_config.num_beams) == (0.9, 3)
    assert model.translator.compute_type.startswith("int8")
    assert str(model).startswith("CTranslate2 int8")
    assert str(model).endswith(" thread(s) each, cpu")
    with pytest.raises(ValueError, match="cannot be trained"):
        model.train()


def test_types_workers_and_threads_reach_the_library(random_model, tokenizer, tmp_path, monkeypatch):
    save_for_ctranslate2(random_model(vocab_size=265), tokenizer, tmp_path, "int8")
    monkeypatch.setattr(module, "choose_workers", lambda wanted, device: wanted)
    monkeypatch.setattr(module, "usable_cores", lambda: 6)
    model = load_ctranslate2(tmp_path, dtype="float32", device="cpu", workers=2)
    assert (model.translator.compute_type, model.translator.num_translators) == ("float32", 2)
    assert (model.workers, model.threads) == (2, 3)


def test_bad_input_is_one_sentence(random_model, tokenizer, tmp_path):
    save_for_ctranslate2(random_model(vocab_size=265), tokenizer, tmp_path)
    with pytest.raises(UserError, match="device='tpu' must be 'cpu' or 'cuda' for engine 'ctranslate2'"):
        load_ctranslate2(tmp_path, device="tpu")
    with pytest.raises(UserError, match=f"dtype='int3' must be one of {supported_types('cpu')[0]}"):
        load_ctranslate2(tmp_path, device="cpu", dtype="int3")
    for name in ("pad_token_id", "decoder_start_token_id"):
        with pytest.raises(UserError, match=f"{name}=1 must be 264, the last id, here"):
            save_for_ctranslate2(random_model(vocab_size=265, **{name: 1}), tokenizer, tmp_path)
    ours = random_model(vocab_size=265)
    ours.generation_config.no_repeat_ngram_size = 3
    with pytest.raises(UserError, match="no_repeat_ngram_size=3 must be left out"):
        save_for_ctranslate2(ours, tokenizer, tmp_path)
    whole = (tmp_path / "generation_config.json").read_text()
    ours.generation_config.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="no_repeat_ngram_size=3 must be left out"):
        load_ctranslate2(tmp_path, device="cpu")
    (tmp_path / "generation_config.json").write_text(whole)
    (tmp_path / "model.bin").write_bytes(b"half")
    with pytest.raises(UserError, match="CTranslate2 cannot open"):
        load_ctranslate2(tmp_path, device="cpu")


def test_a_missing_library_is_named(random_model, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UserError, match="needs the package ctranslate2, which is not installed"):
        save_for_ctranslate2(random_model(vocab_size=265), tokenizer, tmp_path)


def test_a_long_source_is_read_to_its_end(random_model, tokenizer, tmp_path):
    """CTranslate2 reads 1,024 tokens, unless it is told otherwise."""
    ours = random_model(vocab_size=265, max_position_embeddings=2000)
    save_for_ctranslate2(ours, tokenizer, tmp_path)
    theirs, ids = CTranslate2Model(tmp_path), torch.randint(1, 264, (1, 1900))
    mask, settings = torch.ones_like(ids), {"return_dict_in_generate": True}
    output = theirs.generate(ids, mask, num_beams=1, max_new_tokens=5, **settings)
    labels = output.sequences[:, 1:]
    mine, other = (log_probabilities(each, ids, mask, labels) for each in (ours, theirs))
    torch.testing.assert_close(other, mine, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(output.sequences_scores, other.sum(1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_what_is_longer_than_its_table_of_positions_is_cut_off(kind, random_model, tokenizer, tmp_path, caplog):
    ours = random_model(vocab_size=265, position_embedding_type=kind, max_position_embeddings=20)
    save_for_ctranslate2(ours, tokenizer, tmp_path)
    theirs = CTranslate2Model(tmp_path)
    (translation,) = translate(theirs, tokenizer, ["one " * 90], num_beams=1)
    assert "sentences are cut off after 20 tokens" in caplog.text
    assert len(tokenizer(translation[0].text).input_ids) <= 80
    inputs = tokenizer(["one two"], return_tensors="pt")
    assert theirs.generate(inputs.input_ids, inputs.attention_mask, num_beams=1).shape[1] <= 20


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"no_repeat_ngram_size": 3}, "no_repeat_ngram_size=3 must be left out of generation_config.json here"),
        ({"suppress_tokens": [5, 264]}, "suppress_tokens=.5, 264. must be left out"),
        ({"length_penalty": 2.0}, "length_penalty=2.0 must be left out"),
        ({"do_sample": True}, "do_sample=True must be left out"),
        ({"length_penalty_alpha": None}, "length_penalty_alpha must be a number here"),
    ],
)
def test_settings_that_it_would_ignore_are_refused(settings, complaint):
    plain = {"num_beams": 3, "suppress_tokens": [264], "max_new_tokens": 9, "min_new_tokens": 1, "eos_token_id": 0}
    plain["temperature"] = 1.0
    check_settings(GenerationConfig(**plain), 264)
    with pytest.raises(UserError, match=complaint):
        check_settings(GenerationConfig(**plain | settings), 264)


def test_a_length_of_the_generation_config_counts(theirs, tokenizer):
    inputs = tokenizer(["one two"], return_tensors="pt")
    theirs.generation_config.max_new_tokens = 3
    assert theirs.generate(inputs.input_ids, inputs.attention_mask, num_beams=1).shape == (1, 4)
    assert theirs.generate(inputs.input_ids, inputs.attention_mask, num_beams=1, max_new_tokens=5).shape == (1, 6)
