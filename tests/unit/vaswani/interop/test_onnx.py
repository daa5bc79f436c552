"""The graphs of our weights: logits and all searches of ours are the model's own."""

import shutil
import sys

import pytest
import torch

from vaswani.errors import UserError
from vaswani.interop.engines import load_engine
from vaswani.interop.onnx import OnnxModel, check_has_graphs, load_onnx, save_for_onnx
from vaswani.interop.verification import log_probabilities
from vaswani.models.allowed_tokens_vaswani import AllowedTokens
from vaswani.translation import translate


pytest.importorskip("onnxruntime")
SENTENCES = ["one two", "six", "three four five one two", "", "two two"]
VARIANTS = [
    {"decoder_attention_heads": 4, "head_dim": 6, "v_head_dim": 5, "encoder_layers": 1},
    {"position_embedding_type": "learned", "max_position_embeddings": 40, "lm_head_bias": True},
    {"activation_function": "swish", "tie_word_embeddings": False, "attention_bias": False, "layer_norm_eps": 0.1},
]


@pytest.fixture(params=VARIANTS, ids=str)
def ours(request, random_model):
    return random_model(vocab_size=265, **request.param)


@pytest.fixture
def theirs(ours, tokenizer, tmp_path):
    save_for_onnx(ours, tokenizer, tmp_path)
    return OnnxModel(tmp_path)


def test_the_graphs_are_the_model(ours, theirs, tokenizer, batch):
    inputs = batch(ours.config)
    labels = inputs["labels"].clamp(min=1)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    mine, other = (log_probabilities(model, ids, mask, labels) for model in (ours, theirs))
    torch.testing.assert_close(other, mine, atol=1e-4, rtol=1e-4)
    greedy, beams = {"num_beams": 1}, {"num_beams": 3, "num_return_sequences": 2}
    for settings in (greedy, greedy | {"no_repeat_ngram_size": 1}, beams):
        mine, other = (
            translate(model, tokenizer, SENTENCES, with_scores=True, **settings) for model in (ours, theirs)
        )
        for expected, found in zip(mine, other, strict=True):
            assert [each.text for each in found] == [each.text for each in expected]
            assert [each.score for each in found] == pytest.approx([each.score for each in expected], abs=1e-3)


def test_prefixes_and_shortlists_work_too(exported, batch):
    ours, folder = exported
    theirs, inputs = OnnxModel(folder), batch(ours.config)
    del inputs["labels"]
    settings = {"num_beams": 2, "max_new_tokens": 6, "decoder_input_ids": torch.tensor([[264, 5, 7]] * 4)}
    settings["logits_processor"] = [AllowedTokens([0, *range(50, 99)])]
    mine, other = (model.generate(**inputs, **settings) for model in (ours, theirs))
    assert torch.equal(mine, other)


@pytest.mark.parametrize("asked", [{"do_sample": True}, {"num_beams": 2, "do_sample": True}])
def test_what_the_graphs_cannot_search_is_refused_in_a_sentence(asked, exported, tokenizer):
    theirs = OnnxModel(exported[1])
    said = "ONNX Runtime knows beam search and greedy search here: do_sample takes engine 'torch'"
    with pytest.raises(UserError, match=said):
        translate(theirs, tokenizer, SENTENCES, **asked)
    theirs.generation_config.update(**asked)
    with pytest.raises(UserError, match=said):
        translate(theirs, tokenizer, SENTENCES)


def test_settings_that_ask_for_a_dict_change_no_translation(exported, tokenizer):
    theirs = OnnxModel(exported[1])
    plain = translate(theirs, tokenizer, SENTENCES)
    theirs.generation_config.return_dict_in_generate = True
    assert translate(theirs, tokenizer, SENTENCES) == plain


def test_a_folder_has_all_that_is_needed(random_model, tokenizer, tmp_path):
    ours = random_model(vocab_size=265, source_lang="en")
    ours.generation_config.length_penalty_alpha, ours.generation_config.num_beams = 0.9, 3
    save_for_onnx(ours, tokenizer, tmp_path, "int8")
    assert sorted(path.suffix for path in tmp_path.iterdir()).count(".onnx") == 2
    model, loaded = load_engine("onnxruntime", str(tmp_path))
    assert loaded("two six").input_ids == tokenizer("two six").input_ids
    assert (model.config.source_lang, model.device.type) == ("en", "cpu")
    assert (model.generation_config.length_penalty_alpha, model.generation_config.num_beams) == (0.9, 3)
    assert str(model).startswith("ONNX Runtime, 1 worker of ")
    inputs = loaded(["one two"], return_tensors="pt")
    states = model.encode_source(**inputs).last_hidden_state
    exact = ours.model.encoder(**inputs).last_hidden_state
    assert 1e-4 < (states - exact).abs().max() < 0.5  # int8, indeed


def test_bad_input_is_one_sentence(exported, tiny_config, tmp_path):
    shutil.copytree(exported[1], tmp_path, dirs_exist_ok=True)
    for field, value, allowed in (("device", "cuda", "'cpu'"), ("dtype", "int8", "'auto'"), ("workers", 2, "1")):
        with pytest.raises(UserError, match=f"{field}={value!r} must be {allowed} for engine 'onnxruntime'"):
            load_onnx(tmp_path, **{field: value})
    with pytest.raises(UserError, match="attention_restriction=3 must be none here: the graphs"):
        check_has_graphs(tiny_config(attention_restriction=3))
    (tmp_path / "encoder_model.onnx").write_bytes(b"half")
    with pytest.raises(UserError, match="ONNX Runtime cannot open"):
        load_onnx(tmp_path)


@pytest.mark.parametrize("absent", ["onnxruntime", "onnxscript"])
def test_a_missing_library_is_named(absent, random_model, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(UserError, match=f"needs the package {absent}, which is not installed"):
        save_for_onnx(random_model(vocab_size=265), tokenizer, tmp_path)
    assert list(tmp_path.iterdir()) == []
