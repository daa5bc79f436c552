"""What a system translates: decoded once."""

import json
from pathlib import Path

import pytest

from training.tables.systems import translations as module
from training.tables.systems.translations import decode
from vaswani.scoring.references import EvaluationSet


def test_a_text_is_translated_once_and_counted(make_plan, write_half, monkeypatch):
    plan, loaded = make_plan(learning_rate_factors=[1.0]), []
    plan.choose()
    run = plan.plan_runs()[0]
    run.directory.mkdir()

    class Tokenizer:
        def __call__(self, sentences, verbose):
            return type("Encoded", (), {"input_ids": [[*sentence.split(), "</s>"] for sentence in sentences]})

    def load(name):
        loaded.append(name)
        return None, Tokenizer()

    monkeypatch.setattr(module, "load", load)
    monkeypatch.setattr(module, "translate_all", lambda model, tokenizer, sources: [text.upper() for text in sources])
    text = EvaluationSet("test", "test", ["a b", "c"], ["A", "C"])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", write_half)
        with pytest.raises(OSError, match="full"):
            decode(run, text)
    loaded.clear()
    first, second = decode(run, text), decode(run, text)
    assert first == second
    assert (first.translations, first.tokens) == (["A B", "C"], 5)
    assert loaded == [str(run.directory / "model")]
    assert json.loads((run.directory / "decoding-test.json").read_text())["tokens"] == 5
