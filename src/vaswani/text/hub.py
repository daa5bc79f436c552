"""Parallel text of a dataset: from the Hub, or from a local folder in its layout."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import datasets.config
from datasets import Dataset, DatasetDict
from datasets.packaged_modules.csv.csv import CsvConfig

from vaswani.errors import UserError, first_line


TEXT = tuple(map(datasets.Value, ("string", "large_string", "null")))


def load_dataset(name: str, config: str | None) -> DatasetDict:
    """Load all splits of a dataset.

    Raises
    ------
    UserError
        If the dataset cannot be reached or read, its copy cannot be written, or, with its configurations, where one of
        them must be chosen.
    """
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
    try:
        builder = datasets.load_dataset_builder(name, config)
        # Of CSV, pandas would take words such as "None" and "n/a" for missing sentences.
        words: dict[str, Any] = {"keep_default_na": False} if isinstance(builder.config, CsvConfig) else {}
        return datasets.load_dataset(name, config, **words)
    except Exception as error:  # it raises as many kinds of files that are empty or damaged
        reason = error.__cause__ or error
        if isinstance(reason, OSError):
            raise UserError(f"the data cannot be prepared in {datasets.config.HF_DATASETS_CACHE}: {reason}") from error
        empty = [str(file) for file in sorted(Path(name).rglob("*")) if file.is_file() and not file.stat().st_size]
        also = f"; empty: {', '.join(empty)}" if empty else ""  # the library names no file
        raise UserError(f"dataset_name={name!r} cannot be read: {first_line(reason)}{also}") from error


def load_split(name: str, config: str | None, split: str, languages: tuple[str, str]) -> Dataset:
    """Read the parallel text of one split of a dataset, as columns `source` and `target`.

    Raises
    ------
    UserError
        If the dataset, its configuration, the split or a language is missing.
    """
    loaded = load_dataset(name, config)
    require_splits(loaded, [split], name)
    return as_source_and_target(loaded[split], split, languages)


def require_splits(there: Iterable[str], wanted: Iterable[str], name: str) -> None:
    """Refuse a dataset that lacks a split."""
    for split in wanted:
        if split not in there:
            raise UserError(f"the dataset {name!r} has no split {split!r}, only {', '.join(map(repr, there))}")


def as_source_and_target(rows: Dataset, split: str, languages: tuple[str, str]) -> Dataset:
    """Take both languages out of a `translation` column of dicts, or out of one column each.

    Raises
    ------
    UserError
        If the languages are one, or a language is no column, or its column holds no text.
    """
    if languages[0] == languages[1]:
        raise UserError(f"source_lang and target_lang are both {languages[0]!r}: they must differ")
    if "translation" in rows.column_names:
        rows = rows.select_columns("translation").flatten()
        rows = rows.rename_columns({name: name.removeprefix("translation.") for name in rows.column_names})
    for name, language in zip(("source_lang", "target_lang"), languages, strict=True):
        if language not in rows.column_names:
            raise UserError(
                f"{name}={language!r} must be one of the columns of the {split} text: "
                + ", ".join(map(repr, rows.column_names))
            )
        if rows.features[language] not in TEXT:
            raise UserError(
                f"the column {language!r} of the {split} text must hold text, but holds {rows.features[language]}"
            )
    source, target = languages
    return rows.select_columns([source, target]).rename_columns({source: "source", target: "target"})
