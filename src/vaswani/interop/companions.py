"""What a search of ours needs beside another library's files."""

from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vaswani.models.configuration_vaswani import VaswaniConfig


CONFIG = "vaswani_config.json"  # from which the search knows its lengths and ids


def save_beside(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write tokenizer, settings of the search, and config."""
    tokenizer.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    (folder / CONFIG).write_text(model.config.to_json_string(use_diff=False), encoding="utf-8")


def load_config(folder: Path) -> VaswaniConfig:
    """Read the config that `save_beside` wrote."""
    return VaswaniConfig.from_json_file(folder / CONFIG)
