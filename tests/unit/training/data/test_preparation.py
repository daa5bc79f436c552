import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset, concatenate_datasets
from flat_settings import make_settings
from opus_model import save_vocabulary
from transformers import AutoTokenizer

from training.data import preparation, vocabulary
from training.data.bpe_dropout import DroppingEncoder
from training.data.grammar import corpus as grammar
from training.data.preparation import (
    DROP_REASONS,
    Prepared,
    drop_reasons,
    encode,
    encode_epoch,
    fingerprint,
    lengths,
    prepare,
    read_pairs,
)
from training.settings import ROOT, DataSettings
from vaswani.errors import UserError
from vaswani.tokenization import train_tokenizer


pytestmark = pytest.mark.usefixtures("cache")


def settings(**kwargs) -> DataSettings:
    return DataSettings(**{"source_lang": "en", "target_lang": "de"} | kwargs)


def prepare_files(folder: Path, text: str = "ab ab abc\tcd cd cde\n", **kwargs) -> Prepared:
    path = folder / "text.tsv"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
    files = {f"{split}_file": [str(path)] for split in ("train", "validation")}
    given = make_settings(**files | {"source_lang": "en", "target_lang": "de", "vocab_size": 260} | kwargs)
    return prepare(given.data, given.model, folder / "corpus")


def pairs(*rows: tuple[str | None, str | None]) -> Dataset:
    return Dataset.from_dict(dict(zip(("source", "target"), map(list, zip(*rows, strict=True)), strict=True)))


MANY = pairs(*((" ".join("abc" * (number % 7)), "x " * (number % 5)) for number in range(1, 200)))


def test_unusable_pairs_are_dropped_and_counted_by_reason(tokenizer):
    rows = [("a b c", "a b"), ("", "a"), ("a", " \t"), ("a " * 20, "a"), ("a", "a " * 9), (None, "a"), ("b", "b")]
    encoded, counts = encode(pairs(*rows), tokenizer, settings(max_source_length=32, max_length_ratio=4.0), "train")
    assert counts == {"kept": 2, "empty": 3, "too long": 1, "unbalanced": 1}
    assert [tokenizer.decode(ids, skip_special_tokens=True) for ids in encoded["input_ids"]] == ["a b c", "b"]
    assert all(ids[-1] == tokenizer.eos_token_id for ids in encoded["labels"])
    assert encoded["source_length"][:] == [len(ids) for ids in encoded["input_ids"]]


def test_each_side_has_a_limit_of_its_own_which_a_pair_may_reach():
    source, target = np.array([5, 6, 5, 7, 1, 5]), np.array([7, 7, 8, 5, 7, 1])
    reasons = drop_reasons(source, target, np.zeros(6, dtype=bool), 5, 7, 99.0)
    assert [DROP_REASONS[reason] for reason in reasons] == [
        "kept", "too long", "too long", "too long", "unbalanced", "unbalanced"
    ]  # fmt: skip


@pytest.mark.parametrize(("source", "target", "kept"), [(5, 4, [0]), (4, 5, [1]), (5, 5, [0, 1]), (4, 4, [])])
def test_the_limits_of_the_settings_reach_their_sides(tokenizer, source, target, kept):
    rows = [("abc", "ab"), ("ab", "abc"), ("a", "a")]  # 5 and 4 ids, 4 and 5, 3 and 3
    given = settings(max_source_length=source, max_target_length=target)
    encoded, _ = encode(pairs(*rows), tokenizer, given, "train")
    of_epoch, _ = encode_epoch(pairs(*rows), DroppingEncoder(tokenizer, 1e-12, seed=1), given, epoch=0)
    for found in (encoded, of_epoch):
        assert found["input_ids"][:] == tokenizer([rows[index][0] for index in (*kept, 2)]).input_ids


def test_text_and_special_tokens_have_caches_of_their_own():
    own = train_tokenizer(["a b c"], 258)
    for _ in range(2):
        for as_text in (True, False):
            own.split_special_tokens = as_text
            encoded, _ = encode(pairs(("a </s>", "b")), own, settings(max_length_ratio=99), "train")
            assert encoded["input_ids"][:] == own(["a </s>"]).input_ids
            assert (len(encoded["input_ids"][0]) > 6) == as_text


@pytest.mark.parametrize("rows", [pairs(("", "a")), pairs((None, None))])
def test_nothing_left_is_an_error_the_second_time_too(rows, tokenizer):
    for _ in range(2):
        with pytest.raises(UserError, match="no usable pair is left of 1 in test: 0 kept, 1 empty"):
            encode(rows, tokenizer, settings(), "test")


def test_no_pair_at_all_is_an_error(tokenizer):
    with pytest.raises(UserError, match="there is no pair in test"):
        encode(MANY.select([]), tokenizer, settings(), "test")


def test_the_first_reason_counts_and_lengths_are_counted_without_the_end():
    source, target = np.array([3, 3, 300, 2, 2]), np.array([3, 3, 3, 11, 12])
    empty = np.array([False, True, False, False, False])
    reasons = [DROP_REASONS[reason] for reason in drop_reasons(source, target, empty, 256, 256, 10.0)]
    assert reasons == ["kept", "empty", "too long", "kept", "unbalanced"]


def test_ids_are_those_of_a_call_of_the_tokenizer(tokenizer, monkeypatch):
    monkeypatch.setattr(preparation, "PAIRS_AT_A_TIME", 3)
    texts = ["a b", "</s> <pad>", " ümlaut 👩‍👩‍👧 ", "c " * 50, "line\u2028", "a", "b"]
    tokenizer.backend_tokenizer.enable_truncation(3)  # as a tokenizer.json may have been saved
    tokenizer.backend_tokenizer.enable_padding(length=9)
    encoded, _ = encode(pairs(*zip(texts, texts[::-1], strict=True)), tokenizer, settings(max_length_ratio=99), "x")
    assert encoded["input_ids"][:] == tokenizer(texts).input_ids
    assert encoded["labels"][:] == tokenizer(texts[::-1]).input_ids


def test_what_is_prepared_is_memory_mapped_and_found_again_by_another_process(tmp_path, cache, monkeypatch):
    text_of_files = "ab ab abc\tcd cd cde\n\tno source\n"
    (tmp_path / "text.tsv").write_text(text_of_files, encoding="utf-8")
    files = [f"--{split}_file={tmp_path / 'text.tsv'}" for split in ("train", "validation")]
    program = "import sys; from training.data.preparation import prepare; from training.recipe import parse_settings"
    program += "; given = parse_settings(sys.argv[1:]); prepare(given.data, given.model, None)"
    flags = ["--source_lang=en", "--target_lang=de", "--vocab_size=260", *files]
    environment = os.environ | {"HF_DATASETS_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-c", program, *flags], cwd=ROOT, env=environment, check=True)
    left = {path: path.stat().st_mtime_ns for path in (cache / "vaswani").iterdir()}
    assert sorted("".join(path.suffixes) for path in left) == [".arrow", ".counts.json", ".tokenizer.json"]

    monkeypatch.setattr(vocabulary, "train_tokenizer", None)
    monkeypatch.setattr(preparation, "encode_table", None)
    text, tokenizer, encoded, counts = prepare_files(tmp_path, text_of_files)
    assert {path: path.stat().st_mtime_ns for path in (cache / "vaswani").iterdir()} == left
    assert encoded["train"].cache_files[0]["filename"] in map(str, left)
    assert counts["train"] == counts["validation"] == {"kept": 1, "empty": 1, "too long": 0, "unbalanced": 0}
    assert tokenizer.decode(encoded["train"][0]["labels"], skip_special_tokens=True) == text["train"][0]["target"]


@pytest.mark.parametrize(
    ("changed", "trained", "encoded"),
    [
        ({}, 0, 0),
        ({"text": "ab ab abc\tcd cd cdf\n"}, 1, 1),
        ({"vocab_size": 259}, 1, 1),
        ({"max_source_length": 99}, 0, 1),
        ({"max_target_length": 99}, 0, 1),
        ({"max_length_ratio": 5.0}, 0, 1),
    ],
)
def test_only_what_changed_is_made_again(tmp_path, changed, trained, encoded, monkeypatch):
    prepare_files(tmp_path)
    calls = []
    for module, function in ((vocabulary, train_tokenizer), (preparation, preparation.encode_table)):

        def noted(*args, function=function, **kwargs):
            calls.append(function)
            return function(*args, **kwargs)

        monkeypatch.setattr(module, function.__name__, noted)
    prepare_files(tmp_path, **changed)
    assert calls.count(train_tokenizer) == trained
    assert len(calls) - trained == encoded


def test_each_side_is_encoded_as_what_it_is(tmp_path):
    """OPUS-MT's tokenizer has another SentencePiece model for targets."""
    save_vocabulary(tmp_path)
    tokenizer, words = AutoTokenizer.from_pretrained(tmp_path), "zwei klein Hunde ."
    encoded, _ = encode(Dataset.from_dict({"source": [words], "target": [words]}), tokenizer, settings(), "train")
    assert encoded[0]["input_ids"] == tokenizer(words).input_ids
    assert encoded[0]["labels"] == tokenizer(text_target=words).input_ids != tokenizer(words).input_ids


def test_an_unfinished_cache_is_made_again(tokenizer, cache):
    first, counts = encode(MANY, tokenizer, settings(), "train")
    expected = first[:]
    (counted,) = (cache / "vaswani").glob("*.counts.json")
    counted.unlink()  # written last: that run ended before it
    Path(first.cache_files[0]["filename"]).write_bytes(b"")
    second, counts_again = encode(MANY, tokenizer, settings(), "train")
    assert (second[:], counts_again) == (expected, counts)


def test_another_tokenizer_does_not_find_the_ids_of_the_first(tokenizer):
    rows = pairs(("a b c", "abc"))
    first, _ = encode(rows, tokenizer, settings(), "train")
    second, _ = encode(rows, train_tokenizer(["abc abc"], 260), settings(), "train")
    assert first["labels"][:] != second["labels"][:]


def test_a_cache_that_cannot_be_written_is_named(tmp_path, cache):
    cache.write_text("a file, not a folder")
    with pytest.raises(UserError, match=r"the data cannot be prepared in .*cache: .*File exists"):
        prepare_files(tmp_path)


def test_a_full_disk_is_named_by_the_folder_that_is_on_it(tmp_path, monkeypatch):
    monkeypatch.setattr(grammar, "generate_pairs", lambda count, seed: [("a sentence", "ein Satz")] * count)
    given = make_settings(dataset_name="grammar", source_lang="en", target_lang="de", vocab_size=260)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))  # writing more fails as on a full disk
    try:
        with pytest.raises(UserError, match=r"the corpus cannot be written to .*run/corpus: .*too large$"):
            prepare(given.data, given.model, tmp_path / "run" / "corpus")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert list((tmp_path / "run" / "corpus").iterdir()) == []


def test_pairs_are_read_in_any_order(tokenizer, monkeypatch):
    monkeypatch.setattr(preparation, "PAIRS_AT_A_TIME", 8)
    encoded, _ = encode(MANY, tokenizer, settings(), "train")
    indices = np.array([50, 3, 3, len(encoded) - 1, 0])
    sides = read_pairs(encoded.with_format("arrow"), indices)
    for side, column in zip(sides, ("input_ids", "labels"), strict=True):
        rows = [encoded[int(index)][column] for index in indices]
        assert side.ids.tolist() == [id_ for row in rows for id_ in row]
        assert side.lengths.tolist() == list(map(len, rows))
    for side, column in zip(lengths(encoded), ("input_ids", "labels"), strict=True):
        assert side.dtype == np.int32
        assert side.tolist() == list(map(len, encoded[column]))


def test_a_fingerprint_depends_on_the_pairs_and_not_on_how_they_are_stored(tokenizer, monkeypatch):
    encoded, _ = encode(MANY, tokenizer, settings(), "train")
    order = np.arange(len(encoded))
    indexed = concatenate_datasets([encoded.select(order[:9]), encoded.select(order[9:].tolist())])
    in_memory = Dataset.from_dict(encoded[:], features=encoded.features)
    mapped = in_memory.select(order[::-1]).select(order[::-1])
    assert mapped._indices is not None
    expected = fingerprint(encoded)
    monkeypatch.setattr(preparation, "PAIRS_AT_A_TIME", 7)
    assert {fingerprint(rows) for rows in (encoded, indexed, in_memory, mapped)} == {expected}
    for other in (encoded.select(order[:-1]), encoded.select(order[::-1])):
        assert fingerprint(other) != expected


def test_a_fingerprint_sees_where_a_sentence_ends():
    first, second = (
        Dataset.from_dict(
            {"input_ids": ids, "labels": [[1], [1]], "source_length": list(map(len, ids)), "target_length": [1, 1]},
            features=preparation.FEATURES,
        )
        for ids in ([[1, 2], [3]], [[1], [2, 3]])
    )
    assert fingerprint(first) != fingerprint(second)
