import os

import pytest

from training.data import writing
from training.data.writing import write_atomically


def test_text_lies_where_it_should_byte_for_byte(tmp_path):
    path = tmp_path / "new" / "folder" / "file.tsv"
    write_atomically(path, "ä\tb\n\u2028c\n")
    assert path.read_bytes() == "ä\tb\n\u2028c\n".encode()
    write_atomically(path, "d")
    assert path.read_text() == "d"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("step", ["write_text", "replace"])
def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path, monkeypatch, step):
    def fail(*given, **named):
        raise OSError("no space left on device")

    path = tmp_path / "file"
    write_atomically(path, "old")
    monkeypatch.setattr(*((writing.Path, step) if step == "write_text" else (os, step)), fail)
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_two_processes_may_write_the_same_file_at_once(tmp_path, monkeypatch):
    replace, path = os.replace, tmp_path / "file"

    def overtaken(source, target):
        monkeypatch.setattr(os, "replace", replace)
        monkeypatch.setattr(os, "getpid", lambda: -1)  # the other process is done before this one goes on
        write_atomically(path, "same")
        replace(source, target)

    monkeypatch.setattr(os, "replace", overtaken)
    write_atomically(path, "same")
    assert path.read_text() == "same"
    assert list(tmp_path.iterdir()) == [path]
