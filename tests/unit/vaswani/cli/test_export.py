"""`vaswani export` within this process."""

from pathlib import Path

import pytest
from small_parser import save_parser
from transformers import AutoModelForSeq2SeqLM, MarianMTModel

from vaswani import cli
from vaswani.errors import UserError
from vaswani.interop.marian import to_marian
from vaswani.interop.verification import Agreement
from vaswani.tokenization import train_tokenizer


LIMIT = ["--max_new_tokens", "9", "--quiet"]  # random weights find no end
WORDS = ["one two three four five six"]


@pytest.fixture(autouse=True)
def model(random_model, tiny_config, tmp_path, monkeypatch):
    """Work in a folder with a model in `model` and ten sentences in `text`; return the model."""
    monkeypatch.chdir(tmp_path)
    model = random_model(tiny_config(vocab_size=265, source_lang="en", target_lang="de"))
    model.save_pretrained("model")
    train_tokenizer(WORDS, 265).save_pretrained("model")
    Path("text").write_text("one two\n\nsix four\n" * 5)
    Path("empty").write_text("\n")
    return model


def export(*flags):
    return cli.main(["export", "--model", "model", "--output", "new", *flags])


def test_marian_is_verified_and_written(capsys):
    assert export("--format", "marian", "--source", "text") == 0
    said = capsys.readouterr().err
    assert "Verifying on 10 sentences of text\n" in said
    assert "greedy: 10 of 10 translations equal (chrF 100.0); its beam 4: 10 of 10 translations equal" in said
    assert "its beam 4 and the paper's: " in said
    assert said.splitlines()[-1] == "Wrote new, 0 MB"
    assert isinstance(AutoModelForSeq2SeqLM.from_pretrained("new"), MarianMTModel)


def test_a_model_in_the_folder_of_its_run_is_verified_on_what_it_was_tested_on(monkeypatch, capsys):
    Path("outputs").mkdir()
    for split, words in (("validation", "six"), ("test", "two")):
        for side in ("source", "reference"):
            Path("outputs", f"{split}.{side}.txt").write_text(f"{words} one\n" * 120)
    assert export("--format", "marian") == 0
    said = capsys.readouterr().err
    assert "Verifying on 100 sentences of its run's test text\n" in said
    assert "greedy: 100 of 100 translations equal (chrF 100.0, against the references " in said
    Path("outputs/test.reference.txt").unlink()
    assert cli.main(["export", "--model", "model", "--output", "next", "--format", "marian"]) == 0
    assert "of its run's validation text\n" in capsys.readouterr().err
    monkeypatch.chdir("model")
    assert cli.main(["export", "--model", ".", "--output", "../last", "--format", "marian"]) == 0
    assert "of its run's validation text\n" in capsys.readouterr().err


@pytest.mark.parametrize(("form", "library"), [("ctranslate2", "ctranslate2"), ("onnx", "onnxruntime")])
def test_every_format_is_held_against_the_references(form, library, capsys):
    pytest.importorskip(library)
    Path("outputs").mkdir()
    for side in ("source", "reference"):
        Path("outputs", f"test.{side}.txt").write_text("two one\nsix\n")
    assert export("--format", form, "--quantization", "int8") == 0
    assert capsys.readouterr().err.count(", against the references ") == 2  # greedy and beam search


@pytest.mark.parametrize(("form", "search"), [("marian", "its beam 4"), ("onnx", "beam 4")])
def test_where_the_search_is_the_same_beams_must_agree_too(form, search, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    seen = {}

    def note(*given, exact=(), **named):
        seen["exact"] = exact or given[-1]
        return Agreement(
            100, 0.0, {"greedy": 100, search: 3}, {"greedy": 100.0, search: 9.0}, exact=("greedy", search)
        )

    monkeypatch.setattr("vaswani.cli.export.compare", note)
    assert export("--format", form) == 1
    assert seen["exact"] == (search,)
    assert f"gives 3 of 100 translations of search '{search}' as ours does" in capsys.readouterr().err
    assert not Path("new").exists()


ENGINES = {"ctranslate2": "ctranslate2", "onnx": "onnxruntime"}


@pytest.mark.parametrize("kind", ["float32", "int8"])
@pytest.mark.parametrize("form", ENGINES)
def test_other_engines_are_verified_and_translate(form, kind, capsys):
    engine = ENGINES[form]
    pytest.importorskip(engine)
    assert export("--format", form, "--quantization", kind) == 0
    said = capsys.readouterr().err
    assert "Verifying on 100 sentences of random words\n" in said
    assert "; beam 4" in said
    for name, flags in {"ours": [], "theirs": ["--engine", engine]}.items():
        place = "model" if name == "ours" else "new"
        assert cli.main(["translate", "--model", place, *flags, "--input", "text", "--output", name, *LIMIT]) == 0
    lines = [Path(name).read_text().splitlines() for name in ("ours", "theirs")]
    assert len(lines[1]) == 15
    assert kind == "int8" or lines[0] == lines[1]
    scored = ["--source", "text", "--reference", "text", "--json", "scores", "--no_record", *LIMIT[:2]]
    capsys.readouterr()
    assert cli.main(["evaluate", "--engine", engine, "--model", "new", *scored]) == 0
    assert "Translating with CTranslate2 " in (said := capsys.readouterr().err) or "ONNX Runtime, 1 worker" in said
    assert f"at most 9 tokens, {'CTranslate2' if form == 'ctranslate2' else 'ONNX'}" in Path("scores").read_text()


@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_what_is_not_the_same_is_not_written(kind, capsys, monkeypatch):
    pytest.importorskip("ctranslate2")
    bad = Agreement(100, 0.5, {"greedy": 3}, {"greedy": 9.0})
    monkeypatch.setattr("vaswani.cli.export.compare", lambda *arguments: bad)
    status = export("--format", "ctranslate2", "--quantization", kind)
    assert status == (1 if kind == "float32" else 0)  # int8 is shown, and left to the user
    assert Path("new").exists() == (kind == "int8")
    assert "greedy: 3 of 100" in capsys.readouterr().err


def test_a_model_that_samples_goes_to_marian_alone(model, capsys):
    pytest.importorskip("onnxruntime"), pytest.importorskip("ctranslate2")
    model.generation_config.do_sample = True
    model.save_pretrained("model")
    for form in ENGINES:
        assert export("--format", form) == 1
        assert "do_sample=True must be left out of generation_config.json here: " in capsys.readouterr().err
    assert export("--format", "marian", "--source", "text") == 0
    assert "greedy: 10 of 10 translations equal" in capsys.readouterr().err
    assert AutoModelForSeq2SeqLM.from_pretrained("new").generation_config.do_sample


def test_what_is_exported_is_loaded_in_float32_with_the_tokenizer_that_is_named(monkeypatch):
    asked = []

    def load(*given, **how):
        asked.append((given, how))
        raise UserError("enough")

    monkeypatch.setattr("vaswani.cli.export.load", load)
    assert export("--format", "marian", "--tokenizer", "words") == 1
    assert asked == [(("model", "words"), {"device": "cpu", "dtype": "float32"})]


def test_a_wrong_conversion_is_noticed(capsys, monkeypatch):
    def swapped(model):
        marian = to_marian(model)
        attention = marian.model.encoder.layers[0].self_attn
        attention.q_proj, attention.v_proj = attention.v_proj, attention.q_proj
        return marian

    monkeypatch.setattr("vaswani.interop.marian.to_marian", swapped)
    assert export("--format", "marian") == 1
    assert "log-probabilities differ by up to" in capsys.readouterr().err
    assert not Path("new").exists()
    assert export("--format", "marian", "--no-verify") == 0


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--format", "marian", "--output", "model"], "output='model' exists: it must be a new folder"),
        (["--format", "marian", "--quantization", "int8"], "quantization='int8' must be 'float32' for the format"),
        (["--format", "onnx", "--quantization", "int16"], "quantization='int16' must be 'float32' or 'int8' for"),
        (["--format", "marian", "--no-verify", "--source", "text"], "source='text' is for verifying, but --no-verify"),
        (["--format", "marian", "--source", "absent"], "the file absent does not exist"),
        (["--format", "marian", "--source", "empty"], "source='empty' holds no sentence"),
        (["--format", "gguf"], "invalid choice: 'gguf'"),
        (["--format", "marian", "--model", "nowhere"], "model='nowhere' must be a model folder or a Hub id"),
        (["--format", "marian", "--model", "parser"], "model='parser' must be a Transformer that translates"),
    ],
)
def test_bad_input_is_one_sentence(flags, complaint, capsys):
    if "parser" in flags:
        save_parser(Path("parser"))
    capsys.readouterr()
    assert export(*flags) == 1
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") <= 2
    assert not Path("new").exists()


def test_a_type_that_this_cpu_lacks_is_refused(capsys, monkeypatch):
    pytest.importorskip("ctranslate2")
    monkeypatch.setattr("vaswani.interop.ctranslate2.supported_types", lambda device: ["float32", "int8"])
    assert export("--format", "ctranslate2", "--quantization", "int16") == 1
    assert "quantization='int16' must be one of float32, int8, in which CTranslate2" in capsys.readouterr().err
    assert export("--format", "ctranslate2", "--quantization", "int16", "--no-verify") == 0
