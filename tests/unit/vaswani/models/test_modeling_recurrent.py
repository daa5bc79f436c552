"""The recurrent model as a model of transformers: its config, its weights, what it refuses."""

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM
from transformers.modeling_outputs import BaseModelOutput

from vaswani import RecurrentConfig, RecurrentForConditionalGeneration, RecurrentModel
from vaswani.models import modeling_recurrent, translator_vaswani
from vaswani.models.modeling_recurrent import RecurrentLayer


@pytest.fixture
def make():
    def make_model(**overrides) -> RecurrentForConditionalGeneration:
        config = RecurrentConfig(**{"vocab_size": 23, "d_model": 8, "num_layers": 2, "dropout": 0.0} | overrides)
        return RecurrentForConditionalGeneration(config).eval()

    return make_model


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"d_model": 0}, "d_model=0 must be at least 1"),
        ({"num_layers": 0}, "num_layers=0 must be at least 1"),
        ({"d_model": 7, "bidirectional": True}, "d_model=7 must be even if bidirectional"),
        ({"dropout": 1.0}, "dropout=1.0 must be in"),
        ({"pad_token_id": 37000}, "pad_token_id=37000 must be an id below vocab_size=37000"),
        ({"rnn_type": "rnn"}, "rnn_type"),
        ({"attention": "general"}, "attention"),
    ],
)
def test_a_config_that_cannot_be_is_refused(given, sentence):
    with pytest.raises(Exception, match=sentence):
        RecurrentConfig(**given)


def test_the_defaults_are_those_of_luong_and_a_config_comes_back_as_it_went(tmp_path):
    config = RecurrentConfig()
    assert (config.d_model, config.num_layers, config.rnn_type, config.dropout) == (1000, 4, "lstm", 0.2)
    assert (config.hidden_size, config.num_hidden_layers) == (1000, 4)
    RecurrentConfig(attention="additive", bidirectional=True, source_lang="en").save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(loaded, RecurrentConfig)
    assert (loaded.attention, loaded.bidirectional, loaded.source_lang) == ("additive", True, "en")


@pytest.mark.parametrize("tied", [True, False])
def test_it_is_saved_and_loaded_with_each_weight_once(tied, make, batch, tmp_path):
    model = make(tie_word_embeddings=tied, attention="additive", bidirectional=True)
    model.save_pretrained(tmp_path)
    loaded, report = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    inputs = batch(model.config)
    assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)
    names = dict(loaded.named_parameters())
    assert ("lm_head.weight" in names) == ("model.decoder.embed_tokens.weight" in names) == (not tied)
    assert isinstance(AutoModel.from_pretrained(tmp_path), RecurrentModel)


def test_weights_begin_as_the_transformers_do_each_gate_by_itself(make):
    model = make(d_model=64, attention="additive", bidirectional=True)
    bounds = {  # sqrt(6 / (inputs + outputs)), whatever the number of gates
        "encoder.layers.0.rnn.weight_ih_l0_reverse": (64, 32), "encoder.layers.0.rnn.weight_hh_l0": (32, 32),
        "decoder.layers.1.rnn.weight_hh_l0": (64, 64), "decoder.combine.weight": (128, 64),
        "decoder.attention.score_proj.weight": (64, 1),
    }  # fmt: skip
    weights = {name.removeprefix("model."): weight.detach() for name, weight in model.named_parameters()}
    for name, (inputs, outputs) in bounds.items():
        bound = (6 / (inputs + outputs)) ** 0.5
        assert 0.9 * bound < weights[name].abs().max() <= bound, name
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"):
        assert weights[name][:22].std().item() == pytest.approx(1 / 8, rel=0.1), name
        assert (weights[name][22] == 0).all() == ("embed" in name)
    assert all((weight == 0).all() for name, weight in weights.items() if "bias" in name)


def test_dropout_stands_on_embeddings_between_layers_and_on_the_output(make, batch, monkeypatch):
    places = []

    def noted(states, p, training):
        places.append((tuple(states.shape[1:]), p, training))
        return states

    monkeypatch.setattr(modeling_recurrent, "dropout", noted)
    make(dropout=0.3).train()(**batch(RecurrentConfig(vocab_size=23)))
    assert places == [((7, 8), 0.3, True)] * 2 + [((6, 8), 0.3, True)] * 3


def test_padding_never_reaches_the_last_state(make, batch):
    model = make(bidirectional=True)
    inputs = batch(model.config)
    del inputs["labels"]
    whole = model.get_encoder()(**inputs)
    for row in range(4):
        real = inputs["attention_mask"][row].bool()
        alone = model.get_encoder()(inputs["input_ids"][row : row + 1, real])
        assert torch.allclose(whole.last_states[row], alone.last_states[0], atol=1e-6)
        assert torch.allclose(whole.last_hidden_state[row, real], alone.last_hidden_state[0], atol=1e-6)
        assert (whole.last_hidden_state[row, ~real] == 0).all()
    blind = model.get_encoder()(inputs["input_ids"])  # the control: nobody says what is padding
    assert (whole.last_states[0] - blind.last_states[0]).abs().max() > 1e-3


def test_a_source_of_padding_alone_gives_numbers_too(make, batch):
    model = make()
    inputs = batch(model.config)
    expected = model(**inputs).logits[[0, 2, 3]]
    inputs["attention_mask"][1] = 0
    logits = model(**inputs).logits
    assert logits.isfinite().all()
    assert torch.allclose(logits[[0, 2, 3]], expected, atol=1e-6)


def test_a_whole_sequence_is_one_call_of_each_recurrent_layer(make, batch):
    model, calls = make(), []
    for module in model.modules():
        if isinstance(module, nn.LSTM):
            module.register_forward_hook(lambda *given: calls.append(given))
    model(**batch(model.config))
    assert len(calls) == 4
    assert sum(isinstance(module, RecurrentLayer) for module in model.modules()) == 4


def test_what_it_cannot_go_on_from_is_refused(make):
    model, ids = make(), torch.ones(1, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="encoder_outputs is a BaseModelOutput without last_states"):
        model(encoder_outputs=BaseModelOutput(last_hidden_state=torch.zeros(1, 3, 8)), decoder_input_ids=ids)
    with pytest.raises(ValueError, match="decoder_attention_mask has padding before real tokens"):
        model(ids, decoder_input_ids=ids, decoder_attention_mask=torch.tensor([[0, 1, 1]]))
    with pytest.raises(ValueError, match="cache_implementation='static' must be left out"):
        model.generate(ids, cache_implementation="static")
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        model(decoder_input_ids=ids)


@pytest.mark.parametrize("tied", [True, False])
def test_resized_embeddings_keep_what_they_knew(tied, make, batch):
    model = make(tie_word_embeddings=tied)
    inputs = batch(model.config)
    before = model(**inputs).logits
    model.resize_token_embeddings(30)
    assert torch.allclose(model(**inputs).logits[..., :23], before, atol=1e-6)


def test_a_size_that_leaves_no_place_for_a_token_of_the_config_is_said(make, monkeypatch):
    model, said = make(), []
    monkeypatch.setattr(translator_vaswani.logger, "warning", said.append)
    pad = model.config.pad_token_id
    model.resize_token_embeddings(pad + 1)
    assert said == []
    model.resize_token_embeddings(pad)
    assert said == [
        f"config.{name}={pad} must be set anew: the model has {pad} types now"
        for name in ("pad_token_id", "decoder_start_token_id")
    ]
