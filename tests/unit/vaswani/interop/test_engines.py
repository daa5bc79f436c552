import argparse
import shutil
from pathlib import Path

import pytest

from vaswani import cli
from vaswani.cli.shared.flags import add_engine_flag
from vaswani.errors import UserError
from vaswani.evaluation import encode_in_batches, evaluate, negative_log_likelihood
from vaswani.interop import engines
from vaswani.interop.ctranslate2 import save_for_ctranslate2
from vaswani.scoring.references import EvaluationSet


@pytest.fixture
def folder_for(request, random_model, tokenizer, tmp_path):
    """Return a function that gives a model, and a folder of it for an engine."""

    def make(engine):
        pytest.importorskip(engine)
        if engine == "onnxruntime":
            ours, folder = request.getfixturevalue("exported")
            shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
            return ours, tmp_path
        ours = random_model(vocab_size=265)
        save_for_ctranslate2(ours, tokenizer, tmp_path)
        return ours, tmp_path

    return make


@pytest.mark.parametrize("engine", ["ctranslate2", "onnxruntime"])
def test_the_engine_gets_every_argument(engine, monkeypatch, tmp_path):
    files = ("weights",)
    monkeypatch.setitem(engines.ENGINES, engine, engines.Engine("x", files, lambda *arguments: arguments))
    monkeypatch.setattr(engines, "load_tokenizer", lambda where, model: where)
    (tmp_path / "weights").touch()
    here = str(tmp_path)
    assert engines.load_engine(engine, here, "b", "cpu", "int8", 3) == ((tmp_path, "cpu", "int8", 3), "b")
    monkeypatch.setattr(engines, "snapshot_download", lambda name: {"me/model": here, "me/other": "elsewhere"}[name])
    assert engines.load_engine(engine, "me/model") == ((tmp_path, None, "auto", None), here)
    with pytest.raises(UserError, match="model='me/other' must be a folder that `vaswani export --format x` wrote"):
        engines.load_engine(engine, "me/other")


@pytest.mark.parametrize(
    ("engine", "absent", "complaint"),
    [
        ("ctranslate2", "tokenizer.json", "has no tokenizer: it must hold a tokenizer.json beside the model"),
        ("ctranslate2", "shared_vocabulary.json", "is not whole: "),
        ("ctranslate2", "generation_config.json", "is not whole: "),
        ("onnxruntime", "tokenizer.json", "has no tokenizer: it must hold a tokenizer.json beside the model"),
        ("onnxruntime", "generation_config.json", "is not whole: "),
    ],
)
def test_half_a_folder_is_said_in_a_sentence(engine, absent, complaint, folder_for):
    _, folder = folder_for(engine)
    (folder / absent).unlink()
    with pytest.raises(UserError, match=complaint):
        engines.load_engine(engine, str(folder), device="cpu")


@pytest.mark.parametrize("name", ["nobody/nothing", "no such folder"])
def test_a_model_that_is_nowhere_is_named(name, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=f"model='{name}' must be a model folder or a Hub id that can be reached "):
        engines.load_engine("onnxruntime", name)


def test_the_flag_offers_all_of_them():
    parser = argparse.ArgumentParser()
    add_engine_flag(parser)
    for name in ("torch", *engines.ENGINES):
        assert parser.parse_args(["--engine", name]).engine == name
    assert parser.parse_args([]).engine == "torch"


@pytest.mark.parametrize(("engine", "name"), [("ctranslate2", "CTranslate2 float32"), ("onnxruntime", "ONNX Runtime")])
def test_an_engine_is_evaluated_like_our_model(engine, name, folder_for, tokenizer):
    ours, folder = folder_for(engine)
    theirs, _ = engines.load_engine(engine, str(folder), device="cpu")
    text = EvaluationSet("text", "test", ["one two", "six four"], ["three", "five one two"])
    batches = list(encode_in_batches(tokenizer, text, 100))
    expected = negative_log_likelihood(ours, batches)
    # Theirs is without <pad>, whose probability is about 1 / 265.
    assert negative_log_likelihood(theirs, batches) == pytest.approx(expected, abs=0.02)
    settings = {"num_beams": 4, "max_new_tokens": 8}
    evaluation, outputs = evaluate(theirs, tokenizer, text, batches, **settings)
    assert outputs == evaluate(ours, tokenizer, text, batches, **settings)[1]
    assert evaluation.decoding == f"beam 4, alpha 0.6, at most 8 tokens, {name}"


@pytest.mark.parametrize("kind", engines.ENGINES)
def test_the_commands_refuse_what_engines_cannot(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("one\n")
    flags = ["--engine", kind, "--model", "absent"]
    scored = ["--source", "text", "--reference", "text"]
    assert cli.main(["translate", *flags, "--input", "text", "--output", "out", "--shortlist"]) == 1
    assert cli.main(["evaluate", *flags, *scored, "--shortlist"]) == 1
    assert cli.main(["evaluate", "--engine", kind, "--hypothesis", "text", "--reference", "text"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if line.startswith("error")] == [
        f"error: shortlist is for engine 'torch', not for {kind!r}",
        f"error: shortlist is for engine 'torch', not for {kind!r}",
        f"error: engine={kind!r} is for a model: a hypothesis has been written already",
    ]
