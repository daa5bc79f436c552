import argparse
import sys

import pytest
import torch
from transformers import AutoTokenizer, CompileConfig

import vaswani.cli
from training.benchmarks import engines
from vaswani.errors import UserError
from vaswani.models.packing_vaswani import multiplies_bfloat16
from vaswani.tokenization import train_tokenizer


def options_of(*flags):
    parser = argparse.ArgumentParser()
    engines.add_flags(parser)
    return parser.parse_args(flags)


def test_every_engine_translates_the_same_text(random_model, tmp_path, capsys, monkeypatch):
    for package in ("ctranslate2", "onnxruntime"):
        pytest.importorskip(package)
    torch.manual_seed(3)
    model = random_model(vocab_size=265, encoder_layers=1, decoder_layers=1, max_position_embeddings=64)
    model.generation_config.extra_target_tokens = 3
    model.save_pretrained(tmp_path / "model")
    train_tokenizer(["one two three four five six"] * 3, 265).save_pretrained(tmp_path / "model")
    (tmp_path / "text").write_text("one two\nsix four\nfive\n")
    flags = ["--engine_model", str(tmp_path / "model"), "--engine_source", str(tmp_path / "text")]
    started, to_a_line, watch = [], engines.seconds_to_a_line, engines.run_and_watch

    def start(*given):  # what is started to warm up need not run, and of the others one is enough
        started.append(given)
        return to_a_line(*given) if given == started[0] and started.count(given) == 2 else 1.0

    def run(command):  # one in a process of its own, the others without all that a process imports
        if command[: len(started[0][0])] == started[0][0]:
            return watch(command)
        assert command[:3] == [sys.executable, "-m", "vaswani"]
        assert vaswani.cli.main(command[3:]) == 0
        return "", 10**9

    monkeypatch.setattr(engines, "seconds_to_a_line", start)
    monkeypatch.setattr(engines, "run_and_watch", run)
    rows = engines.run(options_of(*flags, "--engine_turns", "1", "--engine_beams", "1"))
    assert started == 2 * started[: len(rows)]  # each once to warm up
    assert [
        row["engine"] for row, (command, _) in zip(rows, started, strict=False) if "--torch_compile" in command
    ] == ["torch, compiled"]
    assert "turn 1/1" in capsys.readouterr().err
    assert [(row["engine"], row["precision"]) for row in rows] == [
        ("torch", "float32"), *([("torch", "bfloat16")] if multiplies_bfloat16() else []),
        ("torch", "int8"), ("torch, compiled", "int8"),
        ("CTranslate2", "float32"), ("CTranslate2", "int8"),
        ("ONNX Runtime", "float32"), ("ONNX Runtime", "int8"),
        ("MarianMT of transformers", "float32"),
    ]  # fmt: skip
    for row in rows:
        assert row["first line, s"]["median"] > 0.1
        assert row["peak memory, GB"] > 0.05
        if row["precision"] == "float32" and row["engine"] != "MarianMT of transformers":  # it has another limit
            assert (row["equal to float32, %"], row["chrF to float32"]) == (100, pytest.approx(100))


def test_without_a_compiler_no_row_is_called_compiled(random_model, tmp_path, monkeypatch):
    model = random_model()
    monkeypatch.setattr(engines, "load", lambda *given, **settings: (model, None))
    assert "torch, compiled" not in {contender.engine for contender in engines.enter(tmp_path)}
    model.generation_config.compile_config = CompileConfig()
    assert "torch, compiled" in {contender.engine for contender in engines.enter(tmp_path)}


@pytest.mark.parametrize("is_fast", [True, False])
def test_bfloat16_is_entered_where_the_cpu_multiplies_it(is_fast, random_model, tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "load", lambda *given, **settings: (random_model(), None))
    monkeypatch.setattr(engines, "multiplies_bfloat16", lambda: is_fast)
    assert ("bfloat16" in {contender.precision for contender in engines.enter(tmp_path)}) == is_fast


def test_a_row_is_of_the_time_behind_the_start(tmp_path):
    train_tokenizer(["one two three four five six"] * 3, 265).save_pretrained(tmp_path)
    measured = engines.Measurements([1.0, 2.0, 1.5], [3.0, 7.0, 3.5], [5, 9 * 10**9, 7], ["one two", "three"])
    contender = engines.Contender("torch", "int8", [])
    row = engines.row_of(contender, measured, ["one two", "six"], AutoTokenizer.from_pretrained(tmp_path))
    assert (row.engine, row.precision, row.peak_memory, row.equal) == ("torch", "int8", 9, 50)
    assert (row.sentences.median, row.sentences.lowest, row.sentences.highest) == (1.0, 0.4, 1.0)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert row.tokens.median == len([*tokenizer("one two").input_ids, *tokenizer("three").input_ids]) / 2
    assert row.first_line.median == 1.5
    assert 0 < row.chrf < 100


def test_a_model_needs_its_text():
    with pytest.raises(UserError, match="engine_model and engine_source must be given both"):
        engines.run(options_of("--engine_model", "x"))


def test_a_text_without_a_line_is_refused_in_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(engines, "load", lambda *given, **settings: (None, None))
    (tmp_path / "text").touch()
    with pytest.raises(UserError, match=r"^engine_source='.*text' has no line to translate$"):
        engines.run(options_of("--engine_model", "x", "--engine_source", str(tmp_path / "text")))
