"""The model of a run: its config, and fresh weights that fit the tokenizer."""

from pathlib import Path

from transformers import AutoConfig, GenerationConfig, PreTrainedTokenizerBase

from training.recipe import nearest
from training.settings import DEFAULT_CONFIG, ROOT
from vaswani import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.errors import UserError
from vaswani.models.decoding_vaswani import PAPERS_DECODING


def load_config(name: str = DEFAULT_CONFIG) -> VaswaniConfig:
    """Load the config that `config_name` names: a folder of `hub_configs/`, another folder, or a Hub id.

    Raises
    ------
    UserError
        If there is none, or it is no Transformer of ours.
    """
    known = sorted(path.parent.name for path in ROOT.glob("hub_configs/*/config.json"))
    folder = ROOT / "hub_configs" / name if name in known else Path(name)
    try:
        config = AutoConfig.from_pretrained(str(folder))
    except (OSError, ValueError) as error:
        if (folder / "config.json").exists():
            raise UserError(f"config_name={name!r}: {error}") from error
        raise UserError(
            f"config_name={name!r} must be a folder of hub_configs/ (the nearest is {nearest(name, known)!r}), "
            "or a folder or Hub id with a config.json of this model"
        ) from error
    if not isinstance(config, VaswaniConfig):
        raise UserError(f"config_name={name!r} is a {config.model_type!r} model: it must be a 'vaswani' model")
    return config


def build_model(
    config: VaswaniConfig,
    tokenizer: PreTrainedTokenizerBase,
    languages: tuple[str, str],
    attn_implementation: str = "sdpa",
) -> VaswaniForConditionalGeneration:
    """Make a freshly initialized model that fits the tokenizer and knows its direction."""
    folder = Path(config.name_or_path)
    config.vocab_size = len(tokenizer)
    config.eos_token_id = tokenizer.eos_token_id
    config.pad_token_id = config.decoder_start_token_id = tokenizer.pad_token_id
    config.source_lang, config.target_lang = languages
    model = VaswaniForConditionalGeneration(config)
    model.set_attn_implementation(attn_implementation)
    decoding = PAPERS_DECODING
    if (folder / "generation_config.json").exists():
        decoding = GenerationConfig.from_pretrained(folder).to_diff_dict()
    ids = ("decoder_start_token_id", "eos_token_id", "pad_token_id", "suppress_tokens")  # these are the tokenizer's
    decoding = {name: value for name, value in decoding.items() if name not in ids}
    model.generation_config.update(**decoding, allow_custom_entries=True)
    return model
