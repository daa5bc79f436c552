import errno
import os
from contextlib import contextmanager

import pytest
from safetensors import SafetensorError

from vaswani import files
from vaswani.errors import UserError
from vaswani.files import new_folder, whole_file, write_text


def test_it_takes_its_name_at_the_end(tmp_path):
    wanted = tmp_path / "new" / "model"
    with new_folder(wanted) as folder:
        (folder / "file").write_text("whole")
        assert not wanted.exists()
    assert (wanted / "file").read_text() == "whole"
    assert [path.name for path in wanted.parent.iterdir()] == ["model"]


@pytest.mark.parametrize(("mask", "mode", "of_folder"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700)])
def test_what_only_its_owner_reads_gets_the_mode_of_any_new_file_and_folder(tmp_path, mask, mode, of_folder):
    before = os.umask(mask)
    try:
        with new_folder(tmp_path / "new") as folder, whole_file(tmp_path / "file") as file:
            for path in (folder / "weights", file):
                path.touch(0o600)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "new" / "weights", tmp_path / "file")} == {mode}
    assert (tmp_path / "new").stat().st_mode & 0o777 == of_folder


@contextmanager
def failing(place, error):
    with new_folder(place) as folder:
        (folder / "file").write_text("half")
        yield
        raise error


@pytest.mark.parametrize(
    ("error", "complaint"),
    [
        (UserError("no"), "no"),
        (KeyboardInterrupt("now"), "now"),
        (OSError(errno.ENOSPC, "No space left on device"), "model' cannot be written: No space left"),
        (SafetensorError("full"), "model' cannot be written: full"),
    ],
)
def test_nothing_stays_of_one_that_was_not_finished(tmp_path, error, complaint):
    with pytest.raises((UserError, KeyboardInterrupt), match=complaint), failing(tmp_path / "model", error):
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_left_alone(tmp_path):
    with pytest.raises(UserError, match="exists: it must be a new folder"), new_folder(tmp_path):
        pass
    assert tmp_path.is_dir()


def test_a_link_to_nothing_is_refused_before_any_work(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="link' exists: it must be a new folder"), new_folder(tmp_path / "link"):
        pytest.fail("began to work")


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file/model' cannot be written"), new_folder(tmp_path / "file" / "model"):
        pass


def test_text_lies_where_it_should_byte_for_byte(tmp_path):
    path = tmp_path / "new" / "folder" / "file.tsv"
    write_text(path, "ä\tb\n\u2028c\n")
    assert path.read_bytes() == "ä\tb\n\u2028c\n".encode()
    write_text(path, "d")
    assert path.read_text() == "d"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("step", ["write_text", "replace"])
def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path, monkeypatch, step):
    def fail(*given, **named):
        raise OSError("no space left on device")

    path = tmp_path / "file"
    write_text(path, "old")
    monkeypatch.setattr(*((files.Path, step) if step == "write_text" else (os, step)), fail)
    with pytest.raises(OSError, match="no space"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_two_processes_may_write_the_same_file_at_once(tmp_path, monkeypatch):
    replace, path = os.replace, tmp_path / "file"

    def overtaken(source, target):
        monkeypatch.setattr(os, "replace", replace)
        monkeypatch.setattr(os, "getpid", lambda: -1)  # the other process is done before this one goes on
        write_text(path, "same")
        replace(source, target)

    monkeypatch.setattr(os, "replace", overtaken)
    write_text(path, "same")
    assert path.read_text() == "same"
    assert list(tmp_path.iterdir()) == [path]
