"""Parallel text from the Hub, a local folder, one's own files or the grammar, as memory-mapped Arrow tables.

What can be wrong with the text is found here, before training starts. The corpus is never a Python list.
"""

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import datasets
from datasets import Dataset, DatasetDict

from training.data.grammar import corpus as grammar
from training.settings import TrainingSettings
from vaswani.errors import UserError
from vaswani.text.parallel import read_files


SPLITS = ("train", "validation", "test")
TEXT = tuple(map(datasets.Value, ("string", "large_string", "null")))


def load_text(settings: TrainingSettings) -> DatasetDict:
    """Read the parallel text of all splits, as columns `source` and `target`.

    Returns
    -------
    DatasetDict
        With "train", "validation" and, where there is one, "test".

    Raises
    ------
    UserError
        If a dataset, configuration, split, language or file is missing or cannot be read.
    """
    if settings.dataset_name == "grammar":
        corpus = grammar.write_corpus(Path(settings.output_dir) / "corpus")
        files = {split: [str(corpus / f"{split}.tsv")] for split in SPLITS}
    else:
        files = {split: getattr(settings, f"{split}_file") for split in SPLITS}
    if any(files.values()):
        languages = settings.source_lang, settings.target_lang
        raw = {split: read_files(paths, languages) for split, paths in files.items() if paths}
    else:
        raw = _load_dataset(settings)
    limits = dict.fromkeys(SPLITS, settings.max_eval_samples) | {"train": settings.max_train_samples}
    splits = DatasetDict()
    for split, rows in raw.items():
        rows = rows if limits[split] is None else rows.select(range(min(limits[split], len(rows))))
        splits[split] = _as_source_and_target(rows, split, settings)
    return splits


def load_split(settings: TrainingSettings, split: str) -> Dataset:
    """Read the parallel text of one split of a dataset, as columns `source` and `target`.

    Raises
    ------
    UserError
        If the dataset, configuration, split or a language is missing.
    """
    if settings.dataset_name == "grammar":
        _require_splits(SPLITS, [split], settings)
        with TemporaryDirectory() as folder:
            path = grammar.write_corpus(Path(folder)) / f"{split}.tsv"
            rows = read_files([str(path)], (settings.source_lang, settings.target_lang))
            return _as_source_and_target(rows, split, settings)
    check_dataset(settings)
    loaded = datasets.load_dataset(settings.dataset_name, settings.dataset_config_name)
    _require_splits(loaded, [split], settings)
    return _as_source_and_target(loaded[split], split, settings)


def check_dataset(settings: TrainingSettings) -> None:
    """Check that a dataset can be reached, and has the configuration.

    Raises
    ------
    UserError
        Naming it and, where one must be chosen, its configurations.
    """
    name, config = settings.dataset_name, settings.dataset_config_name
    try:
        configs = datasets.get_dataset_config_names(name)
    except Exception as error:  # the library raises a dozen kinds, down to the HTTP client's
        raise UserError(
            f"dataset_name={name!r} is neither a local folder nor a dataset that can be reached on the Hub: {error}"
        ) from error
    if config is None and len(configs) > 1:
        raise UserError(f"dataset_config_name is missing: {name!r} has {', '.join(map(repr, configs))}")
    if config is not None and config not in configs:
        raise UserError(f"dataset_config_name={config!r} must be one of {', '.join(map(repr, configs))} of {name!r}")


def _require_splits(loaded: Iterable[str], splits: Iterable[str], settings: TrainingSettings) -> None:
    for split in splits:
        if split not in loaded:
            raise UserError(
                f"the dataset {settings.dataset_name!r} has no split {split!r}, only {', '.join(map(repr, loaded))}"
            )


def _load_dataset(settings: TrainingSettings) -> dict[str, Dataset]:
    check_dataset(settings)
    loaded = datasets.load_dataset(settings.dataset_name, settings.dataset_config_name)
    _require_splits(loaded, SPLITS[:2], settings)
    return {split: loaded[split] for split in SPLITS if split in loaded}


def _as_source_and_target(rows: Dataset, split: str, settings: TrainingSettings) -> Dataset:
    """Take both languages out of a `translation` column of dicts, or out of one column each."""
    source, target = settings.source_lang, settings.target_lang
    if "translation" in rows.column_names:
        rows = rows.select_columns("translation").flatten()
        rows = rows.rename_columns({name: name.removeprefix("translation.") for name in rows.column_names})
    for name, language in (("source_lang", source), ("target_lang", target)):
        if language not in rows.column_names:
            raise UserError(
                f"{name}={language!r} must be one of the columns of the {split} text: "
                + ", ".join(map(repr, rows.column_names))
            )
        if rows.features[language] not in TEXT:
            raise UserError(
                f"the column {language!r} of the {split} text must hold text, but holds {rows.features[language]}"
            )
    return rows.select_columns([source, target]).rename_columns({source: "source", target: "target"})
