import os

import pytest

from vaswani.cli.shared.outputs import check_outputs, write_output
from vaswani.errors import UserError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Work in a folder with a file, two links to it, another folder and a link to nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").write_text("old\n")
    (tmp_path / "soft").symlink_to("old")
    (tmp_path / "hard").hardlink_to("old")
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to("new")
    return tmp_path


@pytest.mark.parametrize("path", ["old", "./folder/../old", "soft", "hard"])
def test_an_output_must_not_be_another_file_of_the_command(path, folder):
    with pytest.raises(UserError, match=rf"^output='{path}' is source='old' too: choose another file$"):
        check_outputs({"output": path}, {"source='old'": "old"})
    assert (folder / "old").read_text() == "old\n"


@pytest.mark.parametrize(("first", "second"), [("new", "new"), ("new", "dangling"), ("old", "hard")])
def test_two_outputs_must_be_two_files(first, second):
    with pytest.raises(UserError, match=rf"^output='{second}' is json='{first}' too"):
        check_outputs({"json": first, "output": second}, {})


def test_a_device_may_be_named_twice():
    check_outputs({"json": "/dev/null", "output": "/dev/null"}, {"source='/dev/null'": "/dev/null"})


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("no/new", "its folder does not exist"),
        ("folder", "Is a directory"),
        ("x" * 300, "File name too long"),
        ("", "No such file or directory"),
    ],
)
def test_what_cannot_be_written_is_refused(path, reason):
    with pytest.raises(UserError, match=rf"^output='{path}' cannot be written: {reason}$"):
        check_outputs({"output": path}, {})


def test_what_may_not_be_written_is_refused(folder):
    (folder / "old").chmod(0o444)
    if os.access("old", os.W_OK):
        pytest.skip("this user may write everything")
    with pytest.raises(UserError, match=r"^output='old' cannot be written: Permission denied$"):
        check_outputs({"output": "old"}, {})


def test_nothing_changes_before_there_is_something_to_write(folder):
    os.mkfifo("pipe")  # whose opening would wait for a reader
    before = sorted(os.listdir())
    for path in ("old", "new", "dangling", "pipe", None):
        check_outputs({"output": path}, {})
    assert sorted(os.listdir()) == before
    assert (folder / "old").read_text() == "old\n"


def test_text_is_written_as_it_is_or_said_not_to_be(folder):
    write_output("output", "new", "schön\r\n")
    assert (folder / "new").read_bytes() == b"sch\xc3\xb6n\r\n"
    with pytest.raises(UserError, match=r"^json='/dev/full' cannot be written: No space left on device$"):
        write_output("json", "/dev/full", "x")
