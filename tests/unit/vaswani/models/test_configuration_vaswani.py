import dataclasses
import json

import pytest
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import AutoConfig, GenerationConfig

from training.recipe import parse_settings
from training.settings import ROOT
from training.trainer.model import load_config
from vaswani import VaswaniConfig
from vaswani.errors import UserError
from vaswani.models.configuration_vaswani import TranslatorConfig
from vaswani.models.decoding_vaswani import PAPERS_DECODING


pytestmark = pytest.mark.smoke


def test_it_constructs_with_no_arguments_as_the_base_model():
    config = VaswaniConfig()
    assert (config.d_model, config.encoder_layers, config.decoder_layers, config.encoder_ffn_dim) == (512, 6, 6, 2048)
    assert (config.hidden_size, config.num_attention_heads, config.num_hidden_layers) == (512, 8, 6)
    assert config.head_dim == 64
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0.1, 0.0, 0.0)
    assert (config.layer_norm_eps, config.attention_bias, config.lm_head_bias) == (1e-5, True, False)
    assert (config.activation_function, config.attention_restriction) == ("relu", None)


def test_padding_is_the_last_id_and_the_start_unless_given():
    assert (VaswaniConfig(vocab_size=99).pad_token_id, VaswaniConfig(vocab_size=99).decoder_start_token_id) == (98, 98)
    given = VaswaniConfig(vocab_size=99, pad_token_id=1, eos_token_id=2)
    assert (given.pad_token_id, given.decoder_start_token_id, given.eos_token_id) == (1, 1, 2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": 510}, "d_model=510 must be a multiple of encoder_attention_heads=8"),
        ({"decoder_attention_heads": 7}, "multiple of decoder_attention_heads=7"),
        ({"d_model": 9, "head_dim": 4}, "d_model=9 must be even for sinusoidal positions"),
        ({"encoder_layers": 0}, "encoder_layers=0 must be at least 1"),
        ({"decoder_ffn_dim": 0}, "decoder_ffn_dim=0 must be at least 1"),
        ({"head_dim": 0}, "head_dim=0 must be at least 1"),
        ({"v_head_dim": 0}, "v_head_dim=0 must be at least 1"),
        ({"max_position_embeddings": 0}, "max_position_embeddings=0 must be at least 1"),
        ({"layer_norm_eps": 0.0}, "layer_norm_eps=0.0 must be a number above 0"),
        ({"layer_norm_eps": float("nan")}, "layer_norm_eps=nan must be a number above 0"),
        ({"layer_norm_eps": float("inf")}, "layer_norm_eps=inf must be a number above 0"),
        ({"vocab_size": 99, "eos_token_id": 99}, "eos_token_id=99 must be an id below vocab_size=99"),
        ({"vocab_size": 99, "eos_token_id": [0, -1]}, "eos_token_id=-1 must be an id below vocab_size=99"),
        ({"d_model": 16, "hidden_size": 32}, "d_model=16 and hidden_size=32 are one field: give one of them"),
        ({"attention_restriction": 0}, "attention_restriction=0 must be at least 1"),
        ({"attention_restriction": -2}, "attention_restriction=-2 must be at least 1"),
        ({"vocab_size": -3}, "vocab_size=-3 must be at least 1"),
        ({"vocab_size": 99, "pad_token_id": 99}, "pad_token_id=99 must be an id below vocab_size=99"),
        ({"vocab_size": 99, "pad_token_id": -1}, "pad_token_id=-1 must be an id below vocab_size=99"),
        (
            {"vocab_size": 99, "decoder_start_token_id": 99},
            "decoder_start_token_id=99 must be an id below vocab_size=99",
        ),
        ({"dropout": 1.0}, r"dropout=1.0 must be in \[0, 1\)"),
        ({"attention_dropout": -0.1}, r"attention_dropout=-0.1 must be in \[0, 1\)"),
        ({"activation_dropout": 1.0}, r"activation_dropout=1.0 must be in \[0, 1\)"),
    ],
)
def test_bad_fields_are_refused_by_name_value_and_rule(fields, message):
    with pytest.raises(ValueError, match=message):
        VaswaniConfig(**fields)


def test_a_config_file_that_is_not_allowed_is_refused_before_training_with_its_field(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "vaswani", "d_model": 30, "encoder_attention_heads": 4}')
    flags = ["--dataset_name=grammar", "--source_lang=en", "--target_lang=de", f"--config_name={tmp_path}"]
    with pytest.raises(UserError, match=r"config_name=.*: d_model=30 must be a multiple of encoder_attention_heads=4"):
        load_config(parse_settings(flags).model.config_name)


@pytest.mark.parametrize("fields", [{"position_embedding_type": "rotary"}, {"d_model": "512"}, {"use_cache": 3}])
def test_bad_types_are_refused(fields):
    with pytest.raises(StrictDataclassFieldValidationError, match=next(iter(fields))):
        VaswaniConfig(**fields)


def test_saved_and_loaded_it_stays_the_same(tmp_path):
    config = VaswaniConfig(
        vocab_size=99, head_dim=3, v_head_dim=5, attention_restriction=7, source_lang="en", target_lang="de"
    )
    config.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).to_diff_dict() == config.to_diff_dict()
    assert AutoConfig.from_pretrained(tmp_path).attention_restriction == 7
    saved = json.loads((tmp_path / "config.json").read_text())
    assert set(saved["auto_map"]) == {"AutoConfig", "AutoModel", "AutoModelForSeq2SeqLM"}
    assert set(saved["custom_pipelines"]) == {"translation", "translation_en_to_de"}


@pytest.mark.parametrize("languages", [{}, {"source_lang": "en"}, {"target_lang": "de"}], ids=str)
def test_a_direction_of_which_a_side_is_unknown_is_no_task(languages):
    assert set(VaswaniConfig(**languages).to_dict()["custom_pipelines"]) == {"translation"}


@pytest.mark.parametrize("path", sorted(ROOT.glob("hub_configs/*/config.json")), ids=lambda path: path.parent.name)
def test_every_config_that_ships_loads_and_holds_declared_fields_only(path):
    config = AutoConfig.from_pretrained(path.parent)
    assert isinstance(config, TranslatorConfig)
    declared = {field.name for field in dataclasses.fields(config)} | {"model_type", "architectures"}
    assert set(json.loads(path.read_text())) <= declared
    decoding = json.loads((path.parent / "generation_config.json").read_text())
    assert decoding["suppress_tokens"] == [decoding["pad_token_id"]]
    assert set(PAPERS_DECODING) <= set(decoding)


@pytest.mark.parametrize(
    ("name", "vocab_size", "dropout"),
    [("base-en-de", 37_000, 0.1), ("big-en-de", 37_000, 0.3), ("base-en-fr", 32_000, 0.1), ("big-en-fr", 32_000, 0.1)],
)
def test_the_papers_models_are_those_of_table_3(name, vocab_size, dropout):
    folder = ROOT / "hub_configs" / name
    config = AutoConfig.from_pretrained(folder)
    assert (config.vocab_size, config.dropout, config.target_lang) == (vocab_size, dropout, name[-2:])
    start = GenerationConfig.from_pretrained(folder)
    assert config.pad_token_id == config.decoder_start_token_id == start.decoder_start_token_id == vocab_size - 1
    assert (start.suppress_tokens, start.pad_token_id) == ([vocab_size - 1], vocab_size - 1)


def test_the_parser_is_that_of_section_6_3():
    config = AutoConfig.from_pretrained(ROOT / "hub_configs" / "parser-wsj")
    assert (config.encoder_layers, config.decoder_layers, config.d_model, config.vocab_size) == (4, 4, 1024, 16_000)
