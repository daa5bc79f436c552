"""Parallel text from the Hub, a local folder, one's own files or the grammar, as memory-mapped Arrow tables.

What can be wrong with files is found here, before training starts. The corpus is never a Python list.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import datasets
from datasets import Dataset, DatasetDict
from datasets.exceptions import DatasetGenerationError

from training import grammar
from training.settings import TrainingSettings, UserError
from vaswani.lines import decode_line


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
        raw = {split: read_files(paths, settings) for split, paths in files.items() if paths}
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
            return _as_source_and_target(read_files([str(path)], settings), split, settings)
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


def read_files(paths: list[str], settings: TrainingSettings) -> Dataset:
    """Read one's own parallel text into columns named by language.

    Parameters
    ----------
    paths : list of str
        One ``.tsv`` (two columns, source first, or a header line of language codes), ``.jsonl`` or ``.json`` (a line
        an object, flat or with `translation`) or ``.parquet`` file; or two text files with a line a sentence, whose
        names may end in their language codes and otherwise are source, then target.

    Raises
    ------
    UserError
        If a file is missing, not UTF-8 (with the line), not of its form (with the line), or of another length.
    """
    for path in paths:
        if not Path(path).is_file():
            raise UserError(f"the file {path} does not exist")
    languages = settings.source_lang, settings.target_lang
    if len(paths) == 2:
        suffixes = tuple(Path(path).suffix.removeprefix(".") for path in paths)
        paths = paths[::-1] if suffixes == languages[::-1] else paths
        rows = _read_aligned
    elif len(paths) > 2:
        raise UserError(f"{len(paths)} files given, {', '.join(paths)}: must be one, or two aligned text files")
    elif Path(paths[0]).suffix == ".parquet":
        return Dataset.from_parquet(paths[0])
    else:
        readers = {".tsv": _read_tsv, ".jsonl": _read_jsonl, ".json": _read_jsonl}
        rows = readers.get(Path(paths[0]).suffix)
    if rows is None:
        raise UserError(
            f"the file {paths[0]} must end in .tsv, .jsonl, .json or .parquet, or be one of two text files"
        )
    return _build(rows, paths, languages)


def _build(rows: Callable[..., Iterator[dict]], paths: list[str], languages: tuple[str, str]) -> Dataset:
    """Write rows to the cache as an Arrow file; the files' sizes and times are part of its name."""
    stamps = [(Path(path).stat().st_size, Path(path).stat().st_mtime_ns) for path in paths]
    if next(rows(paths, languages), None) is None:
        raise UserError(f"the file {paths[0]} holds no pair: it must hold at least one")
    arguments = {"rows": rows, "paths": tuple(paths), "languages": languages, "stamps": tuple(stamps)}
    features = datasets.Features(dict.fromkeys(languages, datasets.Value("string")))
    try:
        return Dataset.from_generator(_call, features=features, gen_kwargs=arguments)
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from None
        raise


def _call(rows: Callable[..., Iterator[dict]], paths: tuple, languages: tuple, stamps: tuple) -> Iterator[dict]:
    del stamps
    yield from rows(paths, languages)


def read_lines(path: str) -> list[str]:
    """Read a whole file of sentences, which a test set may be.

    Raises
    ------
    UserError
        If it is missing or not UTF-8 (with the line).
    """
    if not Path(path).is_file():
        raise UserError(f"the file {path} does not exist")
    return list(_lines(path))


def _lines(path: str) -> Iterator[str]:
    """Yield lines ended by a line feed alone: other separators of Unicode may stand within a sentence."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            yield decode_line(line, path, number)


def _read_aligned(paths: tuple[str, str], languages: tuple[str, str]) -> Iterator[dict[str, str]]:
    counts = [sum(1 for _ in _lines(path)) for path in paths]
    if counts[0] != counts[1]:
        raise UserError(
            f"{paths[0]} has {counts[0]} lines but {paths[1]} has {counts[1]}: aligned files must have equal numbers"
        )
    for sentences in zip(*map(_lines, paths), strict=True):
        yield dict(zip(languages, sentences, strict=True))


def _read_tsv(paths: tuple[str], languages: tuple[str, str]) -> Iterator[dict[str, str]]:
    columns: list[str] = list(languages)
    for number, line in enumerate(_lines(paths[0]), start=1):
        fields = line.split("\t")
        if number == 1 and set(languages) <= set(fields):
            columns = fields
        elif len(fields) != len(columns):
            raise UserError(
                f"{paths[0]} has {len(fields)} columns in line {number}, where {len(columns)} are expected"
            )
        else:
            yield {language: fields[columns.index(language)] for language in languages}


def _read_jsonl(paths: tuple[str], languages: tuple[str, str]) -> Iterator[dict[str, str]]:
    for number, line in enumerate(_lines(paths[0]), start=1):
        try:
            row = json.loads(line)
            row = row.get("translation", row)
            yield {language: row[language] for language in languages}
        except (json.JSONDecodeError, AttributeError) as error:
            raise UserError(f"{paths[0]} has no JSON object in line {number}: {error}") from error
        except KeyError as error:
            raise UserError(f"{paths[0]} has no key {error} in line {number}") from error
