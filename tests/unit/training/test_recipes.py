"""The recipes and configs of the paper's models against the paper, literally."""

import json

import pytest

from training.objective.schedule import learning_rate
from training.recipe import parse_settings
from training.settings import ROOT
from training.tables.rows import ROWS


# Sections 5.1 to 5.4: the same for both sizes and both pairs of languages.
EVERYWHERE = {
    "max_tokens_per_batch": 25_000,
    "warmup_steps": 4000,
    "learning_rate_factor": 1.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.98,
    "adam_epsilon": 1e-9,
    "label_smoothing": 0.1,
    "source_lang": "en",
    "dataset_name": "wmt/wmt14",
}
# Sections 5.2 and 6.1: 10 minutes between checkpoints are 1,500 updates of 0.4 s, or 600 of 1.0 s.
SIZES = {
    "base": {"max_steps": 100_000, "average_checkpoints": 5, "save_steps": 1500, "save_total_limit": 5},
    "big": {"max_steps": 300_000, "average_checkpoints": 20, "save_steps": 600, "save_total_limit": 20},
}
LANGUAGES = {
    "de": {"vocab_size": 37_000, "dataset_config_name": "de-en", "target_lang": "de"},
    "fr": {"vocab_size": 32_000, "dataset_config_name": "fr-en", "target_lang": "fr"},
}
ARCHITECTURES = {
    "base": {"d_model": 512, "encoder_layers": 6, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048},
    "big": {"d_model": 1024, "encoder_layers": 6, "encoder_attention_heads": 16, "encoder_ffn_dim": 4096},
}
DROPOUTS = {"base-en-de": 0.1, "base-en-fr": 0.1, "big-en-de": 0.3, "big-en-fr": 0.1}  # Table 3; section 6.1


def config_of(name: str) -> dict:
    return json.loads((ROOT / "hub_configs" / name / "config.json").read_text())


@pytest.mark.parametrize("name", DROPOUTS)
def test_the_recipes_have_the_papers_values(name):
    size, _, target = name.split("-")
    settings = parse_settings([str(ROOT / "training" / "recipes" / f"{name}.toml")]).values()
    expected = EVERYWHERE | SIZES[size] | LANGUAGES[target] | {"config_name": name, "output_dir": f"runs/{name}"}
    assert {key: settings[key] for key in expected} == expected


@pytest.mark.parametrize("name", [*DROPOUTS, "A-h1"])
def test_a_gpu_computes_an_update_of_the_papers_models_at_once(name):
    optimization = parse_settings([str(ROOT / "training" / "recipes" / f"{name}.toml")]).optimization
    assert optimization.max_tokens_per_device == optimization.max_tokens_per_batch


@pytest.mark.parametrize("name", DROPOUTS)
def test_the_configs_have_the_papers_values(name):
    size, _, target = name.split("-")
    config, expected = config_of(name), dict(ARCHITECTURES[size])
    expected |= {key.replace("encoder", "decoder"): value for key, value in expected.items()}
    expected |= {"dropout": DROPOUTS[name], "vocab_size": LANGUAGES[target]["vocab_size"]}
    expected |= {"source_lang": "en", "target_lang": target, "attention_bias": True, "tie_word_embeddings": True}
    expected |= {"position_embedding_type": "sinusoidal", "eos_token_id": 0}
    assert {key: config[key] for key in expected} == expected
    others = {"attention_dropout", "activation_dropout", "head_dim", "v_head_dim", "attention_restriction"}
    assert not others & set(config)


@pytest.mark.parametrize("name", [name for name in ROWS if name not in ("base", "big")])
def test_the_rows_of_table_3_average_nothing(name):
    settings = parse_settings([str(ROOT / "training" / "recipes" / f"{name}.toml")])
    assert (settings.run.average_checkpoints, settings.model.config_name, settings.optimization.max_steps) == (
        1,
        name,
        100_000,
    )


def test_the_parser_has_the_papers_values():
    config = config_of("parser-wsj")  # section 6.3; dropout as in the original code
    expected = {"d_model": 1024, "encoder_layers": 4, "decoder_layers": 4, "vocab_size": 16_000, "dropout": 0.2}
    expected |= {"attention_dropout": 0.2, "encoder_ffn_dim": 2048, "encoder_attention_heads": 8}
    assert {key: config[key] for key in expected} == expected


# Section 6.1, and 6.3 for parsers; Wu et al. 2021 divide by the length, as transformers' own beam search does.
DECODING = {
    "translator": {"num_beams": 4, "length_penalty_alpha": 0.6, "extra_target_tokens": 50},
    "parser": {"num_beams": 21, "length_penalty_alpha": 0.3, "extra_target_tokens": 300},
    "multi30k-en-de-tiny": {"num_beams": 5, "length_penalty_alpha": None, "extra_target_tokens": 50},
    "multi30k-en-de-best": {"num_beams": 5, "length_penalty_alpha": None, "extra_target_tokens": 50},
}


@pytest.mark.parametrize("folder", sorted((ROOT / "hub_configs").iterdir()), ids=lambda folder: folder.name)
def test_every_model_decodes_as_its_source_says(folder):
    config = json.loads((folder / "config.json").read_text())
    decoding = json.loads((folder / "generation_config.json").read_text())
    pad, kind = config["vocab_size"] - 1, "parser" if config.get("target_lang") == "tree" else "translator"
    assert decoding == {
        "decoder_start_token_id": pad,
        "eos_token_id": 0,
        "pad_token_id": pad,
        "suppress_tokens": [pad],
    } | DECODING.get(folder.name, DECODING[kind])
    assert (config["pad_token_id"], config["decoder_start_token_id"], config["eos_token_id"]) == (pad, pad, 0)


def test_transformer_tiny_has_the_values_of_wu_et_al():
    settings = parse_settings([str(ROOT / "training" / "recipes" / "multi30k-en-de-tiny.toml")])
    expected = {"max_steps": 8000, "max_tokens_per_batch": 2 * 4096, "length_groups": 2, "warmup_steps": 2000}
    expected |= {"adam_epsilon": 1e-8, "max_grad_norm": 25.0, "label_smoothing": 0.1, "average_checkpoints": 10}
    expected |= {"tokenized": True, "adam_beta1": 0.9, "adam_beta2": 0.98}
    assert {name: settings.values()[name] for name in expected} == expected
    config, given = config_of("multi30k-en-de-tiny"), settings.optimization
    peak = learning_rate(given.warmup_steps, config["d_model"], given.warmup_steps)
    assert given.learning_rate_factor * peak == pytest.approx(0.005, rel=1e-3)
    sizes = {"d_model": 128, "encoder_layers": 4, "encoder_ffn_dim": 256, "encoder_attention_heads": 4, "dropout": 0.3}
    sizes |= {name.replace("encoder", "decoder"): value for name, value in sizes.items()}
    assert {name: config[name] for name in sizes} == sizes
