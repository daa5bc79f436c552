"""What `translate` and `parse` share, by work that needs no model; test_translate.py tests it by a whole command."""

import argparse
from pathlib import Path

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


def test_what_does_not_go_together_is_refused(run):
    Path("in").write_text("ab\n")
    Path("out").write_text("x\nx\n")
    with pytest.raises(UserError, match="--resume needs --output"):
        run("--input", "in", "--resume")
    with pytest.raises(UserError, match="out has 2 lines but in has 1: not what became of it"):
        run("--input", "in", "--output", "out", "--resume")
    with pytest.raises(UserError, match="none cannot be read"):
        run("--input", "none")


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
