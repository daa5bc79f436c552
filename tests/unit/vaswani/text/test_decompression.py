import bz2
import gzip
import io
import lzma
import os
import random
import zipfile

import pytest

from vaswani.errors import UserError
from vaswani.text import decompression
from vaswani.text.decompression import check_is_file, name_within, open_decompressed, zstd


DATA = "".join(f"line {random.Random(i).random()}\n" for i in range(20_000)).encode()


def archive(data: bytes, *names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as members:
        for name in names or ("a.tsv",):
            members.writestr(name, data)
    return file.getvalue()


COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd.compress,
    ".zip": archive,
}


def read(path) -> bytes:
    with open_decompressed(str(path)) as file:
        return b"".join(file)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_whole_files_are_read_and_no_others(suffix, tmp_path):
    path, compressed = tmp_path / f"a.tsv{suffix}", COMPRESS[suffix](DATA)
    path.write_bytes(compressed)
    assert read(path) == DATA
    assert name_within(str(path)).endswith("a.tsv")
    for damaged in (compressed[:-1], compressed[: len(compressed) // 2], DATA):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=f"^the file {path} cannot be read: ."):
            read(path)


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_files_that_were_put_together_are_read_to_their_end(suffix, tmp_path):
    path, compress = tmp_path / f"a.tsv{suffix}", COMPRESS[suffix]
    path.write_bytes(compress(DATA[:1000]) + compress(DATA[1000:]))
    assert read(path) == DATA


def test_an_archive_is_named_after_its_only_file(tmp_path):
    path = tmp_path / "corpus.zip"
    path.write_bytes(archive(b"x", "corpus/", "corpus/train.tsv", "__MACOSX/corpus/._train.tsv"))
    assert (name_within(str(path)), read(path)) == ("corpus/train.tsv", b"x")
    for members, found in ((("a.en", "a.de"), "2: a.en, a.de"), (("empty/",), "0: ")):
        path.write_bytes(archive(b"", *members))
        with pytest.raises(UserError, match=f"corpus.zip must hold one file, but holds {found}$"):
            name_within(str(path))


def test_encrypted_archives_missing_files_and_folders_are_refused(tmp_path):
    path = tmp_path / "a.zip"
    encrypted = bytearray(archive(b"x"))
    encrypted[6] |= 1  # the flag stands in both headers
    encrypted[encrypted.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(encrypted)
    (tmp_path / "folder.gz").mkdir()
    for name, reason in (("a.zip", ".* is encrypted"), ("none", "No such file"), ("folder.gz", "Is a directory")):
        with pytest.raises(UserError, match=f"{name} cannot be read: {reason}"):
            read(tmp_path / name)


def test_other_files_are_opened_as_they_are(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(DATA)
    assert (name_within(str(path)), read(path)) == (str(path), DATA)


def test_a_zst_file_whose_package_is_missing_says_which(tmp_path, monkeypatch):
    monkeypatch.delitem(decompression.OPEN, ".zst")
    (tmp_path / "a.zst").write_bytes(zstd.compress(b"text"))
    with pytest.raises(UserError, match=r'a\.zst needs the package backports\.zstd.*pip install "\.\[score\]"'):
        read(tmp_path / "a.zst")


def test_what_is_there_but_no_file_is_not_said_to_be_missing(tmp_path):
    pipe, none = tmp_path / "pipe", tmp_path / "none"
    os.mkfifo(pipe)
    for path, problem in {pipe: "must be a file, not a pipe or a device", none: "does not exist"}.items():
        with pytest.raises(UserError, match=f"^the file {path} {problem}$"):
            check_is_file(str(path))
