"""Parallel text in one's own files, as memory-mapped Arrow tables with a column for each language.

Text is left as it is, and only a line feed ends a line. Errors name the line.
"""

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pyarrow.parquet
from datasets import Dataset, config
from datasets.exceptions import DatasetGenerationError

from vaswani.errors import UserError
from vaswani.text.decompression import check_is_file, lines_of, name_within, open_decompressed
from vaswani.text.headers import LANGUAGE_CODES, find_columns, list_names, looks_like_header
from vaswani.text.json_rows import JsonRows


def read_files(paths: list[str], languages: tuple[str, str]) -> Dataset:
    """Read parallel text from one's own files into columns named by language.

    Parameters
    ----------
    paths : list of str
        One file: ``.tsv`` (two columns, source first, or a header line of language codes), ``.csv`` (with a header),
        ``.jsonl`` or ``.json`` (objects, flat or with `translation`: one per line, in an array, or in an array within
        an object's `data`) or ``.parquet``. Or two text files with a sentence per line, whose names end in their
        language codes, or else source, then target. Each may be compressed: ``.gz``, ``.bz2``, ``.xz``, ``.zst``, or
        ``.zip`` with one file.
    languages : tuple of str
        Source and target: the columns to read.

    Raises
    ------
    UserError
        If a file is missing, damaged, not UTF-8 (with the line), malformed (with the line) or of other languages, or
        aligned files differ in length.
    """
    for path in paths:
        check_is_file(path)
    if len(paths) > 2:
        raise UserError(f"{len(paths)} files given, {', '.join(paths)}: must be one, or two aligned text files")
    names = [name_within(path) for path in paths]
    forms = [Path(name).suffix for name in names]
    if len(paths) == 2:
        if set(forms) & {*READERS, ".parquet"}:
            raise UserError(f"{' and '.join(paths)} must be one file, or two aligned text files: a sentence a line")
        return build(_read_aligned, _in_order(paths, names, languages), languages)
    if forms[0] == ".parquet":
        return _read_parquet(paths[0])
    if forms[0] not in READERS:
        inside = f" within {paths[0]}" if names != paths else ""
        raise UserError(
            f"the file {names[0]}{inside} must end in {', '.join(READERS)} or .parquet, or be one of two text files"
        )
    return build(READERS[forms[0]], paths, languages)


def read_aligned(source: str, target: str) -> Dataset:
    """Read two aligned text files, with a sentence per line, into columns `source` and `target`.

    Raises
    ------
    UserError
        If a file is missing, damaged or not UTF-8 (with the line), has columns by its name, or they differ in length.
    """
    for path in (source, target):
        _check_has_sentences(path)
    return build(_read_aligned, [source, target], ("source", "target"))


def _in_order(paths: list[str], names: list[str], languages: tuple[str, str]) -> list[str]:
    """Put two files in the order of the languages, if their names end in these, compression aside."""
    if Path(paths[0]).samefile(paths[1]):
        raise UserError(f"{' and '.join(paths)} are one file, but must be two: sources and their translations")
    endings = [Path(name).suffix.removeprefix(".") for name in names]
    lowered, (source, target) = [ending.lower() for ending in endings], [language.lower() for language in languages]
    if lowered == [target, source]:
        return paths[::-1]
    if set(lowered) <= LANGUAGE_CODES and set(lowered) != {source, target}:
        raise UserError(
            f"the names of {' and '.join(paths)} end in language codes, {list_names(endings)}, but must end in "
            f"{list_names(languages)} or in none"
        )
    check_sides(paths, languages)
    return paths


def check_sides(paths: list[str], languages: tuple[str | None, str | None]) -> None:
    """Refuse sources or translations whose name ends in the language of the other side, where both are known."""
    endings = [Path(name_within(path)).suffix.removeprefix(".") for path in paths]
    source, target = [(language or "").lower() for language in languages]
    if source and target and source != target and (endings[0].lower() == target or endings[1].lower() == source):
        raise UserError(
            f"the names of {' and '.join(paths)} end in {list_names(endings)}, but the first must hold "
            f"{languages[0]!r} and the second {languages[1]!r}"
        )


def _check_has_sentences(path: str) -> None:
    """Refuse a file that is not there, or whose name says that it holds more than a sentence a line."""
    check_is_file(path)
    form = Path(name_within(path)).suffix
    if form in {*READERS, ".parquet"}:
        raise UserError(f"the file {path} must be a text with a sentence a line, but is {form}")


def _read_parquet(path: str) -> Dataset:
    if name_within(path) != path:
        raise UserError(f"the file {path} must be decompressed first: Parquet is compressed inside")
    try:
        pyarrow.parquet.read_schema(path)
        return Dataset.from_parquet(path)
    except (pyarrow.ArrowException, OSError, DatasetGenerationError) as error:
        raise UserError(f"the file {path} cannot be read as Parquet: {error.__cause__ or error}") from error


def build(rows: Callable[..., Iterator[dict]], paths: list[str], languages: tuple[str, str]) -> Dataset:
    """Write rows to the cache as an Arrow file, under a name that depends on the files' sizes and times.

    `rows(paths, languages)` yields them.

    Raises
    ------
    UserError
        If there is none, `rows` raises it, or the cache cannot be written.
    """
    stamps = [(Path(path).stat().st_size, Path(path).stat().st_mtime_ns) for path in paths]
    if next(rows(paths, languages), None) is None:
        raise UserError(f"the file {paths[0]} holds no pair: it must hold at least one")
    arguments = {"rows": rows, "paths": tuple(paths), "languages": languages, "stamps": tuple(stamps)}
    features = datasets.Features(dict.fromkeys(languages, datasets.Value("string")))
    try:
        return Dataset.from_generator(_call, features=features, gen_kwargs=arguments)
    except (OSError, DatasetGenerationError) as error:
        reason = error.__cause__ or error
        if isinstance(reason, UserError):
            raise reason from None
        if isinstance(reason, OSError):
            cache = config.HF_DATASETS_CACHE
            raise UserError(f"the data cannot be prepared in {cache}: {reason}") from error
        raise


def _call(rows: Callable[..., Iterator[dict]], paths: tuple, languages: tuple, stamps: tuple) -> Iterator[dict]:
    del stamps
    yield from rows(paths, languages)


def read_lines(path: str) -> list[str]:
    """Read a whole file of sentences, such as a test set; it may be compressed.

    Raises
    ------
    UserError
        If it is missing, damaged or not UTF-8 (with the line), or holds columns by its name.
    """
    _check_has_sentences(path)
    return list(lines_of(path))


def _read_aligned(paths: tuple[str, str], languages: tuple[str, str]) -> Iterator[dict[str, str]]:
    counts = [sum(1 for _ in lines_of(path)) for path in paths]
    if counts[0] != counts[1]:
        raise UserError(
            f"{paths[0]} has {counts[0]} lines but {paths[1]} has {counts[1]}: aligned files must have equal numbers"
        )
    for sentences in zip(*map(lines_of, paths), strict=True):
        yield dict(zip(languages, sentences, strict=True))


def _read_tsv(paths: tuple[str], languages: tuple[str, str]) -> Iterator[dict[str, str]]:
    source, target, width = 0, 1, 2
    for number, line in enumerate(lines_of(paths[0]), start=1):
        fields = line.split("\t")
        if number == 1 and set(languages) <= set(fields):
            (source, target), width = find_columns(fields, languages, paths[0]), len(fields)
        elif number == 1 and looks_like_header(fields, languages):
            raise UserError(
                f"the first line of {paths[0]} looks like a header, {list_names(fields)}, that does not name "
                f"{list_names(languages)}: if it is a pair of sentences, put the right header above it"
            )
        elif len(fields) != width:
            columns = "1 column" if len(fields) == 1 else f"{len(fields)} columns"
            raise UserError(f"{paths[0]} has {columns} in line {number}, where {width} are expected")
        else:
            yield {languages[0]: fields[source], languages[1]: fields[target]}


def _read_csv(paths: tuple[str], languages: tuple[str, str]) -> Iterator[dict[str, str]]:
    """Read comma-separated values under a header; a quoted sentence may hold commas and line feeds.

    pandas, with which `datasets` reads them, takes sentences such as "None" and "n/a" for missing ones, and cannot say
    which line is not UTF-8.
    """
    reader = csv.reader((line + "\n" for line in lines_of(paths[0])), strict=True)
    number = 1
    try:
        header = next(reader, None)
        if header is None:
            return
        source, target = find_columns(header, languages, paths[0])
        number = reader.line_num + 1
        for fields in reader:
            if len(fields) == len(header):
                yield {languages[0]: fields[source], languages[1]: fields[target]}
            elif fields:  # an empty line is no row
                columns = "1 column" if len(fields) == 1 else f"{len(fields)} columns"
                raise UserError(f"{paths[0]} has {columns} in line {number}, where {len(header)} are expected")
            number = reader.line_num + 1  # where the next row begins
    except csv.Error as error:
        raise UserError(f"{paths[0]} is no CSV in line {number}: {str(error).split(' - ')[0]}") from error


def _read_json(paths: tuple[str], languages: tuple[str, str]) -> Iterator[dict[str, str | None]]:
    with open_decompressed(paths[0]) as file:
        rows = JsonRows(file, paths[0])
        for row in rows:
            pair = row.get("translation", row) if isinstance(row, dict) else row
            if not isinstance(pair, dict):
                raise UserError(f"{paths[0]} has no JSON object of languages in {rows.place}")
            for language in languages:
                if language not in pair:
                    raise UserError(f"{paths[0]} has no key {language!r} in {rows.place}")
                if not _is_text(pair[language]):
                    raise UserError(
                        f"{paths[0]} must hold text or null for {language!r}, but holds {pair[language]!r:.40} "
                        f"in {rows.place}"
                    )
            yield {language: pair[language] for language in languages}


def _is_text(sentence: Any) -> bool:
    if not isinstance(sentence, str):
        return sentence is None
    try:
        sentence.encode("utf-8")
    except UnicodeEncodeError:  # "\\ud800", half a character
        return False
    return True


READERS = {".tsv": _read_tsv, ".csv": _read_csv, ".jsonl": _read_json, ".json": _read_json}
