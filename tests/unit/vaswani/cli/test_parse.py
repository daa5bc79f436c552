"""`vaswani parse` within this process, by a parser of random weights; test_translate.py has what both share."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small_parser import TREES, save_parser
from transformers import GenerationConfig

from vaswani import cli, workers
from vaswani.models.parsing_vaswani import divide
from vaswani.parsing.treebank import read_trees


LINES = ["the dog sleeps.", "", "tea (cold), we drink often."]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_parser("model")
    Path("in").write_text("".join(f"{line}\n" for line in LINES))


def parse(*flags: str, status: int = 0) -> list[str]:
    command = ["parse", "--model", "model", "--input", "in", "--output", "out", "--quiet", *flags]
    assert cli.main(command) == status
    return Path("out").read_text().splitlines() if Path("out").exists() else []


def words_of(line: str) -> list[str]:
    Path("tree").write_text(line + "\n")
    [tree] = read_trees("tree")
    return [word for word, _ in tree.leaves()]


@pytest.mark.parametrize("flags", [(), ("--unconstrained",), ("--num_beams", "2", "--max_batch_tokens", "1")])
def test_a_line_in_is_a_tree_out_over_its_words(flags):
    first, empty, last = parse(*flags)
    assert empty == ""
    assert [words_of(first), words_of(last)] == [divide(LINES[0]), divide(LINES[2])]


def test_one_tree_is_asked_for_even_if_the_models_settings_ask_for_several():
    flags = "--num_beams", "1"
    expected = parse(*flags)
    settings = GenerationConfig.from_pretrained("model")
    settings.update(num_beams=3, num_return_sequences=2)
    settings.save_pretrained("model")
    assert parse(*flags) == expected


def test_workers_parse_as_one_does(monkeypatch, capsys):
    monkeypatch.setattr(workers, "usable_cores", lambda: 2)
    alone = parse("--workers", "1")
    assert parse("--workers", "2", "--max_batch_tokens", "1") == alone
    Path("in").write_text("the_XYZ\n" * 2)
    assert parse("--workers", "2", "--input_form", "tagged", "--max_batch_tokens", "1", status=1) == []
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1


def test_flags_reach_the_search():
    plain = parse()
    assert parse("--unconstrained") != plain
    assert parse("--num_beams", "4") != plain


def test_words_and_tagged_words_are_taken_as_they_are():
    Path("in").write_text("cold. tea\n")
    [line] = parse("--input_form", "words")
    assert words_of(line) == ["cold.", "tea"]
    Path("in").write_text("cold_._RB tea_NN\n")
    [line] = parse("--input_form", "tagged")
    assert "(RB cold_.)" in line
    assert "(NN tea)" in line


def test_an_output_is_resumed_after_its_lines():
    whole = parse()
    Path("out").write_text(whole[0] + "\n(S (half")
    assert parse("--resume") == whole


@pytest.mark.parametrize(
    ("lines", "flags", "message"),
    [
        ("a (b)", ["--input_form", "words"], r"the word '\(b\)' must have .*; the line is 'a \(b\)'"),
        ("a_DT b", ["--input_form", "tagged"], "'b' must have a part of speech behind it, .*; the line is 'a_DT b'"),
        ("a b", ["--input_form", "tagged"], "'a' must have a part of speech behind it, as dog_NN has; the line is"),
        ("a_DT _NN", ["--input_form", "tagged"], "the word '' must have .*; the line is 'a_DT _NN'"),
        ("a_XY", ["--input_form", "tagged"], "the part of speech 'XY' of 'a' must be one that the model knows"),
        ("a", ["--gold", "gold"], "gold needs picture: it is drawn there"),
        ("a", ["--picture", "out.png"], "picture='out.png' must end in .svg"),
        ("a", ["--picture", "out.svg", "--gold", "none"], "the file none does not exist"),
        ("a", ["--picture", "nowhere/out.svg"], "picture='nowhere/out.svg' cannot be written"),
        ("a", ["--picture", "out.svg", "--gold", "out.svg"], "picture='out.svg' is the file of gold too"),
        ("a", ["--picture", "out.svg", "--output", "out.svg"], "picture='out.svg' is the output too"),
        ("a", ["--picture", "in.svg", "--input", "in.svg"], "picture='in.svg' is the input too"),
    ],
)
def test_bad_input_is_one_sentence(lines, flags, message, capsys):
    Path("in").write_text(lines + "\n")
    parse(*flags, status=1)
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert re.search(message, error)


def test_a_model_that_is_no_parser_is_refused(random_model, tiny_config, capsys):
    random_model(tiny_config(vocab_size=300)).save_pretrained("model")
    parse(status=1)
    assert "model='model' must be a parser, whose target language is 'tree'" in capsys.readouterr().err


def test_the_first_tree_is_drawn_beside_gold():
    Path("gold").write_text(TREES[0] + "\n")
    parse("--picture", "out.svg", "--gold", "gold")
    svg = Path("out.svg").read_text()
    assert ">model<" in svg
    assert ">gold<" in svg
    assert svg.count(">sleeps<") == 2


@pytest.mark.parametrize("lines", [1, len(LINES)])
def test_resumed_the_first_tree_of_the_output_is_drawn_beside_gold(lines):
    Path("gold").write_text(TREES[0] + "\n")
    whole = parse()
    Path("out").write_text("".join(f"{line}\n" for line in whole[:lines]))
    assert parse("--picture", "out.svg", "--gold", "gold", "--resume") == whole
    assert Path("out.svg").read_text().count(">sleeps<") == 2


def test_resumed_without_a_whole_tree_the_first_one_that_is_written_is_drawn():
    whole = parse()
    Path("out").write_text("(S (half")
    assert parse("--picture", "out.svg", "--resume") == whole
    assert ">sleeps<" in Path("out.svg").read_text()


def test_of_several_windows_the_first_tree_is_drawn_and_each_is_parsed_in_batches_of_the_size_asked_for(monkeypatch):
    from vaswani import translation

    sizes, translate = [], translation.translate

    def watched(*given, max_batch_tokens, **how):
        sizes.append(max_batch_tokens)
        return translate(*given, max_batch_tokens=max_batch_tokens, **how)

    monkeypatch.setattr(translation, "translate", watched)
    parse("--picture", "out.svg", "--read_ahead", "1", "--max_batch_tokens", "7")
    assert ">sleeps<" in Path("out.svg").read_text()
    assert sizes == [7] * len(LINES)


@pytest.mark.parametrize("flags", [(), ("--unconstrained",)])
def test_memory_is_foretold_of_the_search_that_runs(flags, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "vaswani.memory.Forecast",
        lambda *given, **how: asked.append(how) or SimpleNamespace(shortage=lambda *given: None),
    )
    parse("--workers", "1", *flags)
    assert asked == [{"is_constrained": not flags, "workers": 1}]


def test_too_little_memory_is_said_before_it_is_needed(monkeypatch, capsys):
    whole = parse()
    assert "memory" not in capsys.readouterr().err
    monkeypatch.setattr("vaswani.memory.available_bytes", lambda: 2_000_000)
    assert parse() == whole
    assert capsys.readouterr().err.count("warning: this may need ") == 1


def test_cudnn_plans_no_attention(monkeypatch):
    said = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", said.append)
    assert parse()
    assert said == [False]
