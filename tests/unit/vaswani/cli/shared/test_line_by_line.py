"""What `translate` and `parse` share, by work that needs no model; test_translate.py tests it by a whole command."""

import argparse
import fcntl
import gzip
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from vaswani.cli.shared import line_by_line
from vaswani.errors import UserError


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parser = argparse.ArgumentParser()
    line_by_line.add_file_flags(parser, "turn")
    line_by_line.add_reading_flags(parser)

    def run(*flags: str, group: int = 1) -> int:
        def work(lines, on_batch):
            on_batch(len(lines))
            return [line[::-1] for line in lines for _ in range(group)]

        return line_by_line.run(parser.parse_args(["--quiet", *flags]), lambda: (work, "a pencil"), "Turning", group)

    return run


@contextmanager
def standing_for(standard: int, file: IO[str]) -> Generator[None, None, None]:
    """Put a file in the place of standard input, 0, or standard output, 1."""
    descriptor = os.dup(standard)
    os.dup2(file.fileno(), standard)
    try:
        yield
    finally:
        os.dup2(descriptor, standard)
        os.close(descriptor)


def test_lines_come_out_in_order_in_windows_and_are_resumed(run):
    Path("in").write_text("ab\n\ncd\nef")
    assert run("--input", "in", "--output", "out", "--read_ahead", "3") == 0
    assert Path("out").read_text() == "ba\n\ndc\nfe\n"
    Path("out").write_text("kept\nhal")
    assert run("--input", "in", "--output", "out", "--resume") == 0
    assert Path("out").read_text() == "kept\n\ndc\nfe\n"


def test_a_group_is_whole_or_done_again(run):
    Path("in").write_text("ab\ncd\n")
    Path("out").write_text("x\nx\nx\n")
    assert run("--input", "in", "--output", "out", "--resume", group=2) == 0
    assert Path("out").read_text() == "x\nx\ndc\ndc\n"


@pytest.mark.parametrize("flags", [[], ["--replace_invalid"]])
def test_a_compressed_file_is_not_taken_for_text(flags, run):
    with gzip.open("in.gz", "wb") as file:
        file.write(b"ab\n")
    Path("out").write_text("kept\n")
    with pytest.raises(UserError, match=r"in\.gz is compressed: unpack it into a pipe instead, as zcat does"):
        run("--input", "in.gz", "--output", "out", *flags)
    assert Path("out").read_text() == "kept\n"


def test_of_a_file_that_is_not_utf_8_it_is_said_how_to_read_it(run):
    Path("in").write_bytes(b"ab\n\xff\n")
    with pytest.raises(UserError, match=r"in is not UTF-8 in line 2: invalid start byte \(--replace_invalid reads"):
        run("--input", "in", "--output", "out")
    assert run("--input", "in", "--output", "out", "--replace_invalid") == 0


def test_what_does_not_go_together_is_refused(run):
    Path("in").write_text("ab\n")
    Path("out").write_text("x\nx\n")
    with pytest.raises(UserError, match="--resume needs --output"):
        run("--input", "in", "--resume")
    with pytest.raises(UserError, match="out has 2 lines but in has 1: not what became of it"):
        run("--input", "in", "--output", "out", "--resume")
    with pytest.raises(UserError, match="none cannot be read"):
        run("--input", "none")
    Path("folder").mkdir()
    with pytest.raises(UserError, match="folder is a directory: it must be a file or a pipe"):
        run("--input", "folder", "--output", "out")
    with pytest.raises(UserError, match="--resume needs an output that is a file, which /dev/null is not"):
        run("--input", "in", "--output", "/dev/null", "--resume")
    with pytest.raises(UserError, match="folder cannot be opened: Is a directory"):
        run("--input", "in", "--output", "folder")
    assert Path("out").read_text() == "x\nx\n"


def test_an_output_that_is_refused_stays_as_it_is(run):
    Path("in").write_text("ab\n")
    Path("out").write_text("x\ny\nno line feed")
    with pytest.raises(UserError, match="out has 2 lines but in has 1"):
        run("--input", "in", "--output", "out", "--resume")
    assert Path("out").read_text() == "x\ny\nno line feed"


def test_the_input_is_no_output(run):
    Path("in").write_text("ab\n")
    Path("link").symlink_to("in")
    for output in ("in", "link", "./in"):
        with pytest.raises(UserError, match=f"{output} is the input too: choose another output"):
            run("--input", "in", "--output", output)
    with Path("in").open() as file, standing_for(0, file), pytest.raises(UserError, match="in is the input too"):
        run("--output", "in")
    assert Path("in").read_text() == "ab\n"


def test_the_input_is_no_standard_output_either(run, monkeypatch):
    def write(target: int, lines: list[str]) -> None:
        pytest.fail("wrote into what it reads, which would never end")

    monkeypatch.setattr(line_by_line, "write_lines", write)
    Path("in").write_text("ab\n")
    message = "standard output is the input too: choose another output"
    with Path("in").open("a") as file, standing_for(1, file), pytest.raises(UserError, match=message):
        run("--input", "in")


def test_a_file_takes_what_is_written_to_standard_output(run):
    Path("in").write_text("ab\n")
    Path("out").write_text("kept\n")
    with Path("out").open("a") as file, standing_for(1, file):
        assert run("--input", "in") == 0
    assert Path("out").read_text() == "kept\nba\n"


def test_a_reader_that_has_had_enough_ends_it_without_a_word(run, capsys):
    Path("in").write_text("ab\n")
    readable, writable = os.pipe()
    os.close(readable)
    with os.fdopen(writable, "w") as pipe, standing_for(1, pipe):
        assert run("--input", "in") == 1
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("number", "flags"), [(0, ["--output", "out"]), (1, ["--input", "in"])])
def test_what_is_closed_is_named_and_not_the_file_that_takes_its_number(number, flags, run):
    Path("in").write_text("ab\n")
    descriptor = os.dup(number)
    os.close(number)
    try:
        name = line_by_line.STANDARD[number]
        with pytest.raises(UserError, match=rf"^{name} cannot be opened: Bad file descriptor$"):
            run(*flags)
    finally:
        os.dup2(descriptor, number)
        os.close(descriptor)


def test_two_do_not_write_one_output(run, monkeypatch):
    monkeypatch.setattr(line_by_line, "PATIENCE", 0.1)
    Path("in").write_text("ab\n")
    with Path("out").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="out is being written by another process: wait until that has ended"):
            run("--input", "in", "--output", "out", "--resume")
    assert run("--input", "in", "--output", "out") == 0
    assert run("--input", "in", "--output", "out") == 0
    assert Path("out").read_text() == "ba\n"


def test_the_first_window_alone_is_asked_about_memory(capsys, monkeypatch):
    asked = []

    class Forecast:
        def __init__(self, *given, **how):
            asked.append((given, how))

        def shortage(self, *given):
            asked.append(given)
            return "this may need 9.0 GB"

    monkeypatch.setattr("vaswani.memory.Forecast", Forecast)
    options = argparse.Namespace(max_batch_tokens=64)
    check = line_by_line.memory_check("model", "tokenizer", {"num_beams": 2}, options, with_scores=True)
    check(["one", "two"])
    check(["three"])
    assert asked == [
        (("model", {"num_beams": 2}), {"with_scores": True}),
        ("tokenizer", ["one", "two"], 64),
    ]
    assert capsys.readouterr().err == "warning: this may need 9.0 GB\n"
