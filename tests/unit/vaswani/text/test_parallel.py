import bz2
import csv
import gzip
import json
import lzma
import os
import resource
import zipfile
from pathlib import Path

import pytest
from datasets import Dataset, config, load_dataset

from vaswani.errors import UserError
from vaswani.text.decompression import zstd
from vaswani.text.parallel import check_sides, read_aligned, read_files, read_lines


LANGUAGES = "en", "de"
COMPRESSIONS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd.compress,
    ".zip": None,
}
PAIRS = [
    ("a b", "c d"),
    ("line\u2028inside", 'quote " tab-free'),
    ("  spaced ", "ümlaut 👩‍👩‍👧"),
    ("", "empty source"),
]


def write(path: Path, text: str | bytes) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return str(path)


def compress(path: Path, suffix: str) -> str:
    compressed = path.with_name(path.name + suffix)
    if suffix == ".zip":
        with zipfile.ZipFile(compressed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(path, path.name)
    else:
        compressed.write_bytes(COMPRESSIONS[suffix](path.read_bytes()))
    return str(compressed)


def write_all_forms(folder: Path) -> dict[str, list[str]]:
    """Write the same pairs in every form that is read."""
    sources, targets = ("".join(side + "\n" for side in sides) for sides in zip(*PAIRS, strict=True))
    rows = [{"en": source, "de": target} for source, target in PAIRS]
    Dataset.from_list(rows).to_parquet(folder / "flat.parquet")
    Dataset.from_list([{"translation": row} for row in rows]).to_parquet(folder / "nested.parquet")
    Dataset.from_list(rows).to_csv(folder / "flat.csv")
    tsv = "".join(f"{source}\t{target}\n" for source, target in PAIRS)
    reversed_tsv = "de\ten\n" + "".join(f"{target}\t{source}\n" for source, target in PAIRS)
    english, german = write(folder / "text.en", sources), write(folder / "text.de", targets)
    return {
        "tsv": [write(folder / "plain.tsv", tsv)],
        "tsv with a header": [write(folder / "header.tsv", reversed_tsv)],
        "tsv of Windows": [write(folder / "windows.tsv", "\ufeff" + tsv.replace("\n", "\r\n"))],
        "csv": [str(folder / "flat.csv")],
        "csv of Windows": [write(folder / "w.csv", (folder / "flat.csv").read_bytes().replace(b"\n", b"\r\n"))],
        "jsonl": [write(folder / "flat.jsonl", "".join(json.dumps(row) + "\n" for row in rows))],
        "jsonl nested": [write(folder / "n.jsonl", "".join(json.dumps({"translation": row}) + "\n" for row in rows))],
        "json": [write(folder / "flat.json", json.dumps(rows, indent=2))],
        "json nested": [write(folder / "n.json", json.dumps([{"translation": row} for row in rows]))],
        "json in data": [write(folder / "data.json", json.dumps({"version": "1", "data": rows}))],
        "parquet": [str(folder / "flat.parquet")],
        "parquet nested": [str(folder / "nested.parquet")],
        "two files": [english, german],
        "two files, known by their endings": [german, english],
        "two files, in order": [write(folder / "a.txt", sources), write(folder / "b.txt", targets)],
    }


def test_every_form_gives_the_same_pairs(tmp_path):
    for form, paths in write_all_forms(tmp_path).items():
        rows = read_files(paths, LANGUAGES)
        if "translation" in rows.column_names:
            rows = rows.flatten().rename_columns({f"translation.{language}": language for language in LANGUAGES})
        assert list(zip(rows["en"], rows["de"], strict=True)) == PAIRS, form


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_every_text_form_may_be_compressed(suffix, tmp_path):
    forms = write_all_forms(tmp_path)
    for form, paths in forms.items():
        if "parquet" not in form:
            compressed = [compress(Path(path), suffix) for path in paths]
            assert read_files(compressed, LANGUAGES).to_list() == read_files(paths, LANGUAGES).to_list(), form
    assert read_lines(compress(Path(forms["two files"][0]), suffix)) == [source for source, _ in PAIRS]


def test_what_datasets_and_pandas_compress_is_read(tmp_path):
    rows = Dataset.from_list([{"en": source, "de": target} for source, target in PAIRS])
    rows.to_pandas().to_csv(tmp_path / "a.csv.gz", index=False)
    rows.to_json(tmp_path / "a.jsonl.bz2", compression="bz2")
    rows.to_json(tmp_path / "a.json.xz", compression="xz", lines=False)
    rows.to_pandas().to_csv(tmp_path / "a.csv.zip", index=False)
    for name in ("a.csv.gz", "a.jsonl.bz2", "a.json.xz", "a.csv.zip"):
        assert read_files([str(tmp_path / name)], LANGUAGES).to_list() == rows.to_list(), name


def test_compressed_files_that_cannot_be_read_are_named(tmp_path):
    whole = Path(compress(Path(write(tmp_path / "a.tsv", "x\ty\n" * 1000)), ".gz"))
    (tmp_path / "cut.tsv.gz").write_bytes(whole.read_bytes()[:-9])
    (tmp_path / "plain.tsv.xz").write_text("x\ty\n")
    Dataset.from_list([{"en": "a", "de": "b"}]).to_parquet(tmp_path / "a.parquet")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    for name, message in [
        ("cut.tsv.gz", "cut.tsv.gz cannot be read: Compressed file ended before"),
        ("plain.tsv.xz", "plain.tsv.xz cannot be read: Input format not supported"),
        ("cut.parquet", "cut.parquet cannot be read as Parquet: Parquet magic bytes not found"),
        ("a.parquet.gz", "a.parquet.gz must be decompressed first: Parquet is compressed inside"),
        ("a.txt.zip", "a.txt within .*a.txt.zip must end in .tsv"),
    ]:
        path = tmp_path / name
        if not path.exists():
            compress(Path(write(path.with_suffix(""), "x")), path.suffix)
        with pytest.raises(UserError, match=message):
            read_files([str(path)], LANGUAGES)


def test_null_is_a_missing_sentence_and_the_last_of_equal_keys_counts(tmp_path):
    paths = [write(tmp_path / "a.json", '[{"en": null, "de": "x"}, {"en": "a", "en": "b", "de": "y"}]')]
    assert read_files(paths, LANGUAGES).to_list() == [{"en": None, "de": "x"}, {"en": "b", "de": "y"}]


def test_csv_is_read_as_datasets_reads_it_except_sentences_that_pandas_takes_for_missing(tmp_path):
    pairs = [('He said, "no".', "a\nb"), ("", "\u2028"), ("x", "y"), ("None", "n/a")]
    path = tmp_path / "pairs.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("en", "de"), *pairs])
    rows = read_files([str(path)], LANGUAGES)
    assert list(zip(rows["en"], rows["de"], strict=True)) == pairs
    control = load_dataset("csv", data_files=str(path), split="train", keep_default_na=False)
    assert control.to_list() == rows.to_list()
    assert load_dataset("csv", data_files=str(path), split="train")[3] == {"en": None, "de": None}


def test_an_empty_file_is_named(tmp_path):
    paths = [write(tmp_path / "empty.tsv", "")]
    with pytest.raises(UserError, match=r"empty\.tsv holds no pair"):
        read_files(paths, LANGUAGES)


@pytest.mark.parametrize("time", [None, 1e9])
def test_a_changed_file_is_read_again_even_one_of_the_same_size_or_time(tmp_path, time):
    for text in ("one\teins", "two\tzwei", "two\tzwei\nthree\tdrei")[0 if time is None else 1 :]:
        path = write(tmp_path / "file.tsv", text)
        os.utime(path, None if time is None else (time, time))
        assert ["\t".join(row.values()) for row in read_files([path], LANGUAGES)] == text.split("\n")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.en": "1\n2\n", "a.de": "1\n"}, "a.en has 2 lines but .*a.de has 1"),
        ({"a.tsv": "x\ty\nonly one\n"}, "a.tsv has 1 column in line 2, where 2 are expected"),
        ({"a.tsv": "x\ty\na\ttab too\tmany\n"}, "a.tsv has 3 columns in line 2, where 2 are expected"),
        (
            {"a.tsv": "en\tfr\nx\ty\n"},
            "first line of .*a.tsv looks like a header, 'en', 'fr', that does not name 'en', 'de'",
        ),
        (
            {"a.tsv": "en\tde\ten\nx\ty\tz\n"},
            "must name each of 'en', 'de' once, but its columns are 'en', 'de', 'en'",
        ),
        (
            {"a.en": "x\n", "a.fr": "x\n"},
            "a.en and .*a.fr end in language codes, 'en', 'fr', but must end in 'en', 'de'",
        ),
        (
            {"a.en": "x\n", "b.en": "x\n"},
            "a.en and .*b.en end in language codes, 'en', 'en', but must end in 'en', 'de'",
        ),
        (
            {"a.txt": "x\n", "a.en": "x\n"},
            "a.txt and .*a.en end in 'txt', 'en', but the first must hold 'en' and the second 'de'",
        ),
        ({"a.EN": "x\n", "a.FR": "x\n"}, "end in language codes, 'EN', 'FR', but must end in 'en', 'de' or in none"),
        ({"a.DE": "x\n", "b.txt": "x\n"}, "end in 'DE', 'txt', but the first must hold 'en' and the second 'de'"),
        ({"a.tsv": b"x\ty\nx\t\xff\n"}, "a.tsv is not UTF-8 in line 2"),
        ({"a.jsonl": '{"en": "x", "de": "y"}\n{"en": "x"}\n'}, r"a.jsonl has no key 'de' in row 2 \(line 2\)"),
        ({"a.jsonl": "{\n"}, r"a.jsonl has no JSON object in row 1 \(line 1\)"),
        ({"a.json": '["x"]'}, "a.json has no JSON object of languages in row 1"),
        ({"a.json": '[{"translation": null}]'}, "a.json has no JSON object of languages in row 1"),
        ({"a.json": '{"en": ["x"], "de": ["y"]}'}, r"must hold text or null for 'en', but holds \['x'\] in row 1"),
        (
            {"a.json": '[{"en": "x", "de": ' + "1" * 5000 + "}]"},
            r"a.json cannot be read in row 1 \(line 1\): Exceeds the limit",
        ),
        ({"a.json": '[{"en": "x", "de": 12}]'}, r"must hold text or null for 'de', but holds 12 in row 1 \(line 1\)"),
        (
            {"a.json": '[{"en": "\\ud83d", "de": "y"}]'},
            r"must hold text or null for 'en', but holds '\\ud83d' in row 1",
        ),
        (
            {"a.csv": "en,fr\nx,y\n"},
            "header of .*a.csv must name each of 'en', 'de' once, but its columns are 'en', 'fr'",
        ),
        ({"a.csv": "A dog.,Ein Hund.\n"}, "header of .*a.csv must name .* but its columns are 'A dog.', 'Ein Hund.'"),
        ({"a.csv": "en;de\nx;y\n"}, "header of .*a.csv must name .* but its columns are 'en;de'"),
        ({"a.csv": "en,de\nx,y\n\nx,y,z\n"}, "a.csv has 3 columns in line 4, where 2 are expected"),
        (
            {"a.csv": 'en,de\n"two\nlines",y\n"not closed,y\nx,y\n'},
            "a.csv is no CSV in line 4: unexpected end of data",
        ),
        ({"a.csv": 'en,de\n"He" said,y\n'}, "a.csv is no CSV in line 2: ',' expected after '\"'"),
        ({"a.csv": "en,de\none\rtwo,y\n"}, "a.csv is no CSV in line 2: new-line character seen in unquoted field$"),
        ({"a.csv": b"en,de\nx,y\nx,\xff\n"}, "a.csv is not UTF-8 in line 3"),
        ({"a.csv": "en,de\n"}, "a.csv holds no pair"),
        ({"a.csv": ""}, "a.csv holds no pair"),
        ({"a.txt": "x\n"}, "a.txt must end in .tsv, .csv, .jsonl, .json or .parquet"),
        ({"a.tsv": "x\ty\n", "b.tsv": "x\ty\n"}, "must be one file, or two aligned text files: a sentence a line"),
        ({"a.en": "x\n", "a.de": "x\n", "b.de": "x\n"}, "3 files given"),
        ({"a.parquet": "x\n", "b.parquet": "x\n"}, "b.parquet must be one file, or two aligned text files"),
    ],
)
def test_bad_files_are_one_clear_sentence(tmp_path, files, message):
    paths = [write(tmp_path / name, text) for name, text in files.items()]
    with pytest.raises(UserError, match=message):
        read_files(paths, LANGUAGES)


def test_a_file_is_not_taken_for_its_own_translation(tmp_path):
    path = write(tmp_path / "a.txt", "x\n")
    with pytest.raises(UserError, match=r"a.txt and .*a.txt are one file, but must be two"):
        read_files([path, path], LANGUAGES)


def test_endings_may_be_in_capitals(tmp_path):
    paths = [write(tmp_path / name, f"{text}\n") for name, text in (("a.DE", "eins"), ("a.EN", "one"))]
    assert read_files(paths, LANGUAGES)[0] == {"en": "one", "de": "eins"}


def test_endings_that_are_no_languages_are_source_then_target(tmp_path):
    paths = [write(tmp_path / name, f"{text}\n") for name, text in (("a.input", "one"), ("a.output", "eins"))]
    assert read_files(paths, LANGUAGES)[0] == dict(zip(LANGUAGES, ("one", "eins"), strict=True))


@pytest.mark.parametrize("names", [("b.en", "a.de"), ("a.de", "b.en"), ("one", "two.txt.gz")])
def test_the_two_sides_are_those_that_are_given_whatever_the_files_are_called(names, tmp_path):
    paths = []
    for name, lines in zip(names, zip(*PAIRS, strict=True), strict=True):
        text = "".join(f"{line}\n" for line in lines).encode()
        paths.append(write(tmp_path / name, gzip.compress(text) if name.endswith("gz") else text))
    rows = read_aligned(*paths)
    assert list(zip(rows["source"], rows["target"], strict=True)) == PAIRS
    with pytest.raises(UserError, match="the file elsewhere does not exist"):
        read_aligned(paths[0], "elsewhere")


def test_a_full_disk_is_named_by_the_cache_that_is_on_it(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path / "cache")
    files = [write(tmp_path / name, "a sentence that is long\n" * 1000) for name in ("text.en", "text.de")]
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))  # writing more fails as on a full disk
    try:
        with pytest.raises(UserError, match=r"^the data cannot be prepared in .*cache: .*too large$"):
            read_aligned(*files)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


@pytest.mark.parametrize("name", ["test.tsv", "test.csv.gz", "test.jsonl", "test.parquet"])
def test_columns_are_not_taken_for_sentences(name, tmp_path):
    file, other = tmp_path / name, tmp_path / "test.de"
    for path in (file, other):
        path.write_text("a\tb\n")
    for read in (lambda: read_lines(str(file)), lambda: read_aligned(str(other), str(file))):
        with pytest.raises(UserError, match=f"{name} must be a text with a sentence a line, but is .{name[5]}"):
            read()


@pytest.mark.parametrize("languages", [("de", "de"), (None, "de"), ("de", None), ("", "en"), ("english", "german")])
def test_sides_are_judged_by_languages_that_are_known_and_two(languages):
    check_sides(["test.en", "test.de"], languages)
    check_sides(["test", "test"], languages)


def test_a_file_of_the_other_side_is_refused():
    for paths in (["a.de", "b.en"], ["a.DE.gz", "b"], ["a", "b.en"]):
        with pytest.raises(UserError, match="the first must hold 'en' and the second 'de'"):
            check_sides(paths, ("en", "de"))
