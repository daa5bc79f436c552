"""The config that a name stands for, and a fresh model that fits its tokenizer."""

import pytest
from huggingface_hub import constants
from tokenizers import Tokenizer, models

from training.settings import ROOT, DataSettings, OptimizationSettings
from training.trainer.model import build_model, check_attention, check_dropout, check_lengths, load_config
from vaswani import ConvolutionalConfig, RecurrentConfig, RecurrentForConditionalGeneration
from vaswani.errors import UserError
from vaswani.tokenization import train_tokenizer, wrap_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["ab ab abc", "cd cd cde"], 260)


def test_a_name_is_a_folder_of_hub_configs_and_then_any_folder(tiny_config, tmp_path, monkeypatch):
    assert load_config().d_model == 512
    assert load_config("big-en-de").d_model == 1024
    tiny_config(d_model=24).save_pretrained(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    assert load_config("mine").d_model == 24


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (None, "config_name='bas-en-de' must be a folder of hub_configs/ .the nearest is 'base-en-de'"),
        ('{"model_type": "marian"}', "config_name='bas-en-de' is a 'marian' model: it must be a 'vaswani' or "),
        ('{"model_type": "vaswani", "d_model": 7}', "config_name='bas-en-de': .*d_model"),
        ('{"model_type": "recurrent", "encoder_layers": 2}', "'encoder_layers' is no field of a 'recurrent' model"),
        ('{"model_type": "vaswani", "num_layer": 2}', "'num_layer' is no field of a 'vaswani' model .the nearest is"),
        (
            '{"model_type": "vaswani", "d_model": "big"}',
            "config_name='bas-en-de': .* 'd_model' expected int, got str .*$",
        ),
        ('{"model_type": "vaswani", "activation_function": "gelu"}', "expected one of ..relu', 'swish'., got gelu$"),
        ("null", "config_name='bas-en-de': "),
        ('{"model_type": "convolutional", "encoder_kernel_sizes": [2]}', "encoder_kernel_sizes"),
    ],
)
def test_what_is_no_config_of_ours_is_refused(config, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # so that nothing is asked for again and again
    if config is not None:
        (tmp_path / "bas-en-de").mkdir()
        (tmp_path / "bas-en-de" / "config.json").write_text(config)
    with pytest.raises(UserError, match=sentence):
        load_config("bas-en-de")


@pytest.mark.parametrize("decoding", ["{", '{"num_beams": 0}', '{"length_penalty_alpha": "x"}'])
def test_a_config_whose_decoding_cannot_be_used_is_refused_before_the_training(decoding, tiny_config, tmp_path):
    tiny_config().save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(decoding)
    with pytest.raises(UserError, match=r"^config_name='.*' has a generation_config.json that cannot be used: "):
        load_config(str(tmp_path))


def test_the_model_fits_its_tokenizer_knows_its_direction_and_decodes_as_its_config_says(tokenizer):
    model = build_model(load_config("demo"), tokenizer, ("nl", "fr"), "eager")
    config = model.config
    assert (config.source_lang, config.target_lang, config._attn_implementation) == ("nl", "fr", "eager")
    assert config.vocab_size == model.lm_head.out_features == len(tokenizer)
    assert (config.eos_token_id, config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert config.decoder_start_token_id == tokenizer.pad_token_id
    decoding = model.generation_config
    assert (decoding.num_beams, decoding.length_penalty_alpha, decoding.extra_target_tokens) == (4, 0.6, 50)
    assert (decoding.eos_token_id, decoding.suppress_tokens) == (tokenizer.eos_token_id, [tokenizer.pad_token_id])


def test_the_ids_are_those_of_the_tokenizer_wherever_it_has_them():
    words = Tokenizer(models.WordLevel({"a": 0, "<pad>": 1, "</s>": 2}, unk_token="a"))
    model = build_model(load_config("demo"), wrap_tokenizer(words), ("nl", "fr"))
    for config in (model.config, model.generation_config):
        assert (config.eos_token_id, config.pad_token_id, config.decoder_start_token_id) == (2, 1, 1)
    assert model.generation_config.suppress_tokens == [1]


def test_the_decoding_of_the_configs_folder_wins_over_the_papers(tokenizer, tmp_path):
    for name in ("config.json", "generation_config.json"):
        (tmp_path / name).write_text((ROOT / "hub_configs" / "parser-wsj" / name).read_text())
    decoding = build_model(load_config(str(tmp_path)), tokenizer, ("en", "de")).generation_config
    assert (decoding.num_beams, decoding.length_penalty_alpha, decoding.extra_target_tokens) == (21, 0.3, 300)
    (tmp_path / "generation_config.json").unlink()
    assert build_model(load_config(str(tmp_path)), tokenizer, ("en", "de")).generation_config.num_beams == 4


def test_a_saved_config_has_no_field_too_many(tiny_config, tmp_path):
    for number, config in enumerate((tiny_config(), RecurrentConfig(), ConvolutionalConfig())):
        config.save_pretrained(tmp_path / str(number))
        assert type(load_config(str(tmp_path / str(number)))) is type(config)


def test_a_back_end_that_cannot_do_the_attention_is_refused(tiny_config):
    check_attention(tiny_config(), "flex_attention")
    check_attention(tiny_config(attention_restriction=3), "eager")
    check_attention(RecurrentConfig(), "sdpa")
    with pytest.raises(UserError, match="attn_implementation='flex_attention' does not go together with attention_re"):
        check_attention(tiny_config(attention_restriction=3), "flex_attention")
    with pytest.raises(UserError, match="'flex_attention' does not go together with a 'convolutional' model: it must"):
        check_attention(ConvolutionalConfig(), "flex_attention")


@pytest.mark.parametrize("name", ["spda", "flash_attention_2"])
def test_a_back_end_that_is_not_here_is_refused(tiny_config, name):
    with pytest.raises(UserError, match=f"attn_implementation='{name}' cannot be used here: "):
        check_attention(tiny_config(), name)


def test_sentences_must_fit_a_table_of_positions(tiny_config):
    data = DataSettings(max_source_length=9, max_target_length=10)
    check_lengths(tiny_config(max_position_embeddings=4), data)
    check_lengths(tiny_config(max_position_embeddings=10, position_embedding_type="learned"), data)
    with pytest.raises(UserError, match="max_target_length=10 must be at most the 9 positions"):
        check_lengths(tiny_config(max_position_embeddings=9, position_embedding_type="learned"), data)
    with pytest.raises(UserError, match="max_source_length=9 must be at most the 8 positions"):
        check_lengths(ConvolutionalConfig(max_position_embeddings=8), data)


def test_a_predecessor_is_built_as_the_transformer_is(tokenizer):
    model = build_model(load_config("recurrent-attention-en-de"), tokenizer, ("nl", "fr"), "eager")
    assert isinstance(model, RecurrentForConditionalGeneration)
    assert (model.config.vocab_size, model.config.target_lang) == (len(tokenizer), "fr")
    assert (model.generation_config.num_beams, model.generation_config.length_penalty_alpha) == (4, 0.6)


@pytest.mark.parametrize("name", ["dropout", "attention_dropout", "activation_dropout"])
def test_r_drop_needs_dropout_anywhere(tiny_config, name):
    settings = OptimizationSettings(rdrop_alpha=5.0)
    check_dropout(tiny_config(**{name: 0.1}), settings)
    check_dropout(tiny_config(), OptimizationSettings())
    with pytest.raises(UserError, match=r"^rdrop_alpha=5.0 needs a model with dropout, and this one has none$"):
        check_dropout(tiny_config(), settings)
