"""The fingerprint of a run: its recipe, model, vocabulary and data, which must be the same when it is resumed."""

import hashlib
from typing import Any

from datasets import DatasetDict
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from training.data.preparation import fingerprint
from training.data.sentence_encoder import description
from training.settings import TrainingSettings


# Settings that may change when a run is resumed: an update stays the same. So may the place of the text, of the
# tokenizer or of the base model: its content is compared instead.
FREE = {
    "dataset_name", "dataset_config_name", "train_file", "validation_file", "test_file", "tokenizer_name",
    "vocab_size", "config_name", "model_name_or_path", "output_dir", "overwrite_output_dir", "max_steps",
    "max_tokens_per_device", "tf32", "torch_compile", "dataloader_num_workers", "max_time",
    "early_stopping_patience", "metric_for_best_model", "resume_from_checkpoint", "logging_steps", "eval_steps",
    "save_steps", "save_minutes", "save_total_limit", "average_checkpoints", "report_to", "push_to_hub",
    "hub_model_id", "space", "tokenized",
}  # fmt: skip


def run_fingerprint(
    settings: TrainingSettings,
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    encoded: DatasetDict,
    base_model: str | None = None,
) -> dict[str, dict[str, Any]]:
    """Collect what must not change between saving and resuming, as JSON; `base_model` is a checksum of its weights."""
    model = config.to_diff_dict()
    vocabulary = description(tokenizer).encode()
    return {
        "recipe": {name: value for name, value in settings.values().items() if name not in FREE},
        "model": {name: value for name, value in model.items() if name not in ("transformers_version", "dtype")},
        "tokenizer": {"sha256": hashlib.sha256(vocabulary).hexdigest()},
        "base_model": {} if base_model is None else {"sha256": base_model},
        "data": {split: f"{len(rows):,} pairs, {fingerprint(rows)}" for split, rows in encoded.items()},
    }


def weights_checksum(model: PreTrainedModel) -> str:
    """Return the SHA-256 of all weights, whatever files they were read from."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        digest.update(name.encode())
        digest.update(weight.detach().contiguous().numpy())
    return digest.hexdigest()


def differences(there: dict[str, dict[str, Any]], here: dict[str, dict[str, Any]]) -> list[str]:
    """Say in which points two fingerprints differ."""
    found = []
    for subject in here:
        names = sorted(there.get(subject, {}).keys() | here[subject].keys())
        names = [name for name in names if subject != "recipe" or name not in FREE]  # it was not always as free
        pairs = ((name, there.get(subject, {}).get(name), here[subject].get(name)) for name in names)
        found += [f"{subject}'s {name} is {old!r} there, {new!r} here" for name, old, new in pairs if old != new]
    return found
