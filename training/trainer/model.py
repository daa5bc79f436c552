"""The model of a run: its config, and fresh weights that fit the tokenizer."""

import copy
import dataclasses
from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from training.recipe import nearest
from training.settings import DEFAULT_CONFIG, ROOT, DataSettings, OptimizationSettings
from vaswani import MODEL_TYPES
from vaswani.errors import UserError, first_line
from vaswani.loading import check_generation_config
from vaswani.models.configuration_vaswani import TranslatorConfig
from vaswani.models.decoding_vaswani import PAPERS_DECODING
from vaswani.models.generation_vaswani import max_positions
from vaswani.models.translator_vaswani import TranslatorForConditionalGeneration


# What transformers writes into every config.
NOTED_BY_TRANSFORMERS = {
    "model_type", "architectures", "auto_map", "custom_pipelines", "transformers_version", "dtype", "torch_dtype",
}  # fmt: skip


def load_config(name: str = DEFAULT_CONFIG) -> TranslatorConfig:
    """Load the config that `config_name` names: a folder of `hub_configs/`, another folder, or a Hub id.

    Raises
    ------
    UserError
        If there is none, it is no model of ours, it has a field that such a model does not have, or the
        `generation_config.json` beside it cannot be used.
    """
    known = sorted(path.parent.name for path in ROOT.glob("hub_configs/*/config.json"))
    folder = ROOT / "hub_configs" / name if name in known else Path(name)
    try:
        config = AutoConfig.from_pretrained(str(folder))
    except Exception as error:  # depending on what is wrong, the libraries raise half a dozen kinds
        if (folder / "config.json").exists():
            raise UserError(f"config_name={name!r}: {' '.join(str(error).split())}") from error
        raise UserError(
            f"config_name={name!r} must be a folder of hub_configs/ (the nearest is {nearest(name, known)!r}), "
            "or a folder or Hub id with a config.json of this model"
        ) from error
    check_is_ours("config_name", name, config)
    check_fields(name, folder, config)
    check_generation_config(str(folder), "config_name")
    return config


def check_fields(name: str, folder: Path, config: TranslatorConfig) -> None:
    """Refuse a field that this type of model does not have: transformers would take it and nobody would read it."""
    given, _ = PreTrainedConfig.get_config_dict(str(folder))
    known = [field.name for field in dataclasses.fields(config)]
    allowed = {*known, *config.attribute_map, *NOTED_BY_TRANSFORMERS}
    for field in given:
        if field not in allowed and not field.startswith("_"):  # older releases of transformers add some of their own
            raise UserError(
                f"config_name={name!r}: {field!r} is no field of a {config.model_type!r} model (the nearest is "
                f"{nearest(field, known)!r})"
            )


def check_attention(config: TranslatorConfig, attn_implementation: str) -> None:
    """Refuse a back end that cannot do a model's attention, or that transformers does not have here."""
    restriction = getattr(config, "attention_restriction", None)
    what = f"a {config.model_type!r} model" if restriction is None else f"attention_restriction={restriction}"
    is_any_allowed = config.model_type == "vaswani" and restriction is None
    if not is_any_allowed and attn_implementation not in ("sdpa", "eager"):
        raise UserError(
            f"attn_implementation={attn_implementation!r} does not go together with {what}: it must be 'sdpa' or "
            "'eager'"
        )
    try:
        on_paper(config).set_attn_implementation(attn_implementation)
    except (ValueError, ImportError) as error:
        raise UserError(
            f"attn_implementation={attn_implementation!r} cannot be used here: {first_line(error)}"
        ) from error


def on_paper(config: TranslatorConfig, vocab_size: int | None = None) -> TranslatorForConditionalGeneration:
    """Return a model on the meta device: shapes without memory."""
    config = copy.deepcopy(config)
    config.vocab_size = vocab_size or config.vocab_size
    config.pad_token_id = config.decoder_start_token_id = config.vocab_size - 1
    with torch.device("meta"):
        return AutoModelForSeq2SeqLM.from_config(config)


def check_lengths(config: TranslatorConfig, data: DataSettings) -> None:
    """Refuse sentences that would be longer than the model's table of positions, if it has one."""
    rows = max_positions(config)
    for name in ("max_source_length", "max_target_length"):
        if rows is not None and getattr(data, name) > rows:
            raise UserError(
                f"{name}={getattr(data, name)} must be at most the {rows} positions of the model's table "
                "(max_position_embeddings)"
            )


def check_dropout(config: TranslatorConfig, optimization: OptimizationSettings) -> None:
    """Refuse R-Drop of a model without dropout, which would predict the same twice."""
    names = "dropout", "attention_dropout", "activation_dropout"
    if optimization.rdrop_alpha is not None and not any(getattr(config, name, 0) for name in names):
        raise UserError(f"rdrop_alpha={optimization.rdrop_alpha} needs a model with dropout, and this one has none")


def check_is_ours(setting: str, name: str, config: PreTrainedConfig) -> None:
    """Refuse a model that this package does not have."""
    if not isinstance(config, TranslatorConfig):
        kinds = " or ".join(repr(kind) for kind in MODEL_TYPES)
        raise UserError(f"{setting}={name!r} is a {config.model_type!r} model: it must be a {kinds} model")


def build_model(
    config: TranslatorConfig,
    tokenizer: PreTrainedTokenizerBase,
    languages: tuple[str, str],
    attn_implementation: str = "sdpa",
) -> TranslatorForConditionalGeneration:
    """Make a freshly initialized model that fits the tokenizer and knows its direction."""
    folder = Path(config.name_or_path)
    config.vocab_size = len(tokenizer)
    config.eos_token_id = tokenizer.eos_token_id
    config.pad_token_id = config.decoder_start_token_id = tokenizer.pad_token_id
    config.source_lang, config.target_lang = languages
    model = AutoModelForSeq2SeqLM.from_config(config)
    model.set_attn_implementation(attn_implementation)
    decoding = PAPERS_DECODING
    if (folder / "generation_config.json").exists():
        decoding = GenerationConfig.from_pretrained(folder).to_diff_dict()
    ids = ("decoder_start_token_id", "eos_token_id", "pad_token_id", "suppress_tokens")  # these are the tokenizer's
    decoding = {name: value for name, value in decoding.items() if name not in ids}
    model.generation_config.update(**decoding, allow_custom_entries=True)
    return model
