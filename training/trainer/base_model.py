"""The published model that a run starts from: config, weights, tokenizer and how it decodes."""

import tomllib
from pathlib import Path

import torch
from transformers import AutoConfig, GenerationConfig

from training.checkpoints.fingerprint import weights_checksum
from training.data.sentence_encoder import description
from training.data.vocabulary import load_named_tokenizer
from training.settings import ModelSettings, TrainingSettings
from training.trainer.model import check_attention, check_is_ours, load_config
from vaswani.errors import UserError, not_found
from vaswani.loading import check_generation_config, load_weights
from vaswani.models.configuration_vaswani import TranslatorConfig
from vaswani.models.decoding_vaswani import PAPERS_DECODING
from vaswani.models.pipeline_vaswani import tokenizer_problem
from vaswani.models.translator_vaswani import TranslatorForConditionalGeneration


# Of which each tokenizer of transformers writes one.
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
# Fields of a config that do not say what the model is: they follow from its tokenizer or its languages.
NOT_ARCHITECTURE = {
    "vocab_size", "pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id", "source_lang",
    "target_lang", "use_cache", "is_encoder_decoder",
}  # fmt: skip


def load_base_model(settings: TrainingSettings) -> tuple[TranslatorForConditionalGeneration, dict[str, str]]:
    """Load the model of `model_name_or_path` in float32, and give it the direction of the run.

    Returns
    -------
    model : TranslatorForConditionalGeneration
        With its own config, weights and generation config.
    origin : dict of str to str
        For recipe and card: its name, the direction that it was trained on, the SHA-256 of its weights.

    Raises
    ------
    UserError
        If it is missing, incomplete, no model of ours or without its tokenizer, contradicts another setting, or
        lies where this run writes.
    """
    name, output_dir = str(settings.model.model_name_or_path), settings.run.output_dir
    if Path(name).is_dir() and Path(name).resolve().is_relative_to(Path(output_dir).resolve()):
        raise UserError(
            f"model_name_or_path={name!r} must not lie in output_dir={output_dir!r}, where this run writes "
            "its own model: choose another output_dir"
        )
    try:
        config = AutoConfig.from_pretrained(name)
    except Exception as error:  # depending on what is wrong, the libraries raise half a dozen kinds
        raise not_found(name, error, "model_name_or_path") from error
    check_is_ours("model_name_or_path", name, config)
    _check_contradictions(config, settings.model)
    model = _load_weights(name, config)
    _check_tokenizer(model, settings.model)
    origin = {
        "base_model": _public_name(name),
        "base_model_direction": f"{config.source_lang}-{config.target_lang}",
        "base_model_sha256": weights_checksum(model),
    }
    model.config.source_lang, model.config.target_lang = settings.data.source_lang, settings.data.target_lang
    check_attention(config, settings.run.attn_implementation)
    model.set_attn_implementation(settings.run.attn_implementation)
    check_generation_config(name, "model_name_or_path")
    try:
        GenerationConfig.from_pretrained(name)
    except OSError:  # it does not say how to decode
        model.generation_config.update(**PAPERS_DECODING, allow_custom_entries=True)
    return model, origin


def _check_contradictions(config: TranslatorConfig, settings: ModelSettings) -> None:
    """Refuse a vocabulary size or a config that was given too, and is not that of the base model."""
    name = settings.model_name_or_path
    if settings.vocab_size not in (None, config.vocab_size):
        raise UserError(
            f"vocab_size={settings.vocab_size} contradicts model_name_or_path={name!r}, which has {config.vocab_size} "
            "types: leave vocab_size out"
        )
    if settings.config_name is None:
        return
    given = load_config(settings.config_name)
    fields = ["model_type", *(field for field in config.architecture_fields() if field not in NOT_ARCHITECTURE)]
    pairs = [(field, getattr(given, field, None), getattr(config, field)) for field in fields]
    differences = [f"{field} is {one!r} there, {other!r} here" for field, one, other in pairs if one != other]
    if differences:
        raise UserError(
            f"config_name={settings.config_name!r} contradicts model_name_or_path={name!r}: "
            f"{'; '.join(differences)}: leave config_name out"
        )


def _load_weights(name: str, config: TranslatorConfig) -> TranslatorForConditionalGeneration:
    """Load all weights in float32, whatever type they were saved in."""
    model, found = load_weights(name, "model_name_or_path", config=config, dtype=torch.float32)
    problems = list(found.values())
    if config.tie_word_embeddings and model.lm_head.weight is not model.get_input_embeddings().weight:
        problems.append("two matrices where tie_word_embeddings=True wants one")
    if problems:
        raise UserError(
            f"model_name_or_path={name!r} has weights that do not fit its config.json: {', '.join(problems)}"
        )
    for weight in model.parameters():
        # Until here a view of the file, which somebody may write anew while this run trains.
        weight.data = weight.data.clone()
    return model


def _check_tokenizer(model: TranslatorForConditionalGeneration, settings: ModelSettings) -> None:
    """Check that the tokenizer that will be used is the model's."""
    name, given = str(settings.model_name_or_path), settings.tokenizer_name
    has_none = Path(name).is_dir() and not any((Path(name) / file).exists() for file in TOKENIZER_FILES)
    if has_none and given is None:
        raise UserError(
            f"model_name_or_path={name!r} has no tokenizer, as no checkpoint has: name that of its run's model/ with "
            "tokenizer_name"
        )
    tokenizer = load_named_tokenizer(given or name, "tokenizer_name" if given else "model_name_or_path")
    problem = tokenizer_problem(model, tokenizer)
    if problem is not None:
        raise UserError(f"model_name_or_path={name!r} {problem}")
    if given is None or has_none:
        return
    own = load_named_tokenizer(name, "model_name_or_path")
    if description(own) != description(tokenizer):
        raise UserError(
            f"tokenizer_name={given!r} contradicts model_name_or_path={name!r}, which has another tokenizer: leave "
            "tokenizer_name out"
        )


def _public_name(name: str) -> str:
    """Return the Hub id of a model, or what its run was called; never a path of this machine."""
    folder = Path(name)
    if not folder.is_dir():
        return name
    recipe = folder / "recipe.toml"
    published = tomllib.loads(recipe.read_text(encoding="utf-8")) if recipe.exists() else {}
    return published.get("hub_model_id") or Path(published.get("output_dir", folder.resolve())).name
