import os
import sys

import numpy as np
import pytest

from vaswani import cli
from vaswani.cli import attention as module
from vaswani.pictures.attention import CROSS
from vaswani.tokenization import train_tokenizer


@pytest.fixture
def folder(random_model, tmp_path, monkeypatch):
    sizes = {"encoder_layers": 2, "decoder_layers": 3, "decoder_attention_heads": 2}
    random_model(vocab_size=270, **sizes).save_pretrained(tmp_path / "model")
    train_tokenizer(["one two three four", "eins zwei drei vier"], 270).save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def show(*flags: str) -> int:
    return cli.main(["attention", "--model", "model", "one two", *flags])


def test_it_writes_a_page_or_figures(folder, capsys):
    for name in ("page.html", "lines.svg", "map.png"):
        assert show("--target", "eins", "--output", name, *(["--as", "map"] if name == "map.png" else [])) == 0
        assert capsys.readouterr().out == f"Written: {name}\n"
    assert "Attention of model" in (folder / "page.html").read_text(encoding="utf-8")
    assert "layer 3, head 1, 2" in (folder / "lines.svg").read_text(encoding="utf-8")


def test_it_draws_a_translation_in_motion(folder):
    assert show("--target", "eins zwei", "--output", "moving.svg", "--as", "motion") == 0
    assert 'aria-label="one two: eins zwei"' in (folder / "moving.svg").read_text(encoding="utf-8")


def test_its_flags_reach_the_figure_and_the_search(folder, monkeypatch):
    given, reading = {}, module.read_attention

    def read(model, tokenizer, source, target, **kwargs):
        given["search"] = (source, target, kwargs)
        return reading(model, tokenizer, source, target, **kwargs)

    def draw(attention, kind, layer, heads):
        given["figure"] = (kind, layer, list(heads), attention.source)
        return None

    monkeypatch.setattr(module, "read_attention", read)
    monkeypatch.setattr("vaswani.pictures.attention_figures.draw_map", draw)
    monkeypatch.setattr("vaswani.pictures.attention_figures.save", lambda figure, path: None)
    flags = ["--kind", "encoder", "--layer", "1", "--heads", "2,1,2", "--words", "--as", "map", "--num_beams", "3"]
    assert show("--output", "x.png", *flags, "--max_new_tokens", "4") == 0
    assert given["search"] == ("one two", None, {"num_beams": 3, "max_new_tokens": 4})
    assert given["figure"] == ("encoder", 0, [1, 0], ["Ġone", "Ġtwo", "</s>"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--output", "x.pdf"], "output='x.pdf' must end in .html, .png, .svg"),
        (["--layer", "2"], "layer is for figures: the page has all of them to choose from"),
        (["--output", "x.png", "--layer", "4"], "layer=4 must be at most 3, the layers of this model"),
        (["--output", "x.png", "--heads", "1,3"], "heads='1,3' must be numbers from 1 to 2 with commas between"),
        (
            ["--output", "x.svg", "--as", "motion", "--layer", "2"],
            "layer is not for --as motion, an .svg of encoder-decoder attention as a whole",
        ),
        (
            ["--output", "x.svg", "--as", "motion", "--heads", "2"],
            "heads is not for --as motion, an .svg of encoder-decoder attention as a whole",
        ),
        (
            ["--output", "x.png", "--as", "motion"],
            "output='x.png' is not for --as motion, an .svg of encoder-decoder attention as a whole",
        ),
        (["--output", "no/x.html"], "output='no/x.html' cannot be written: No such file or directory"),
        (
            ["--target", "eins", "--num_beams", "2"],
            "num_beams is for the model's own translation, but there is a target",
        ),
        (["--target", " "], "target=' ' must hold a word"),
        (
            ["--target", os.fsdecode(b"caf\xe9")],
            r"target='caf\udce9' must be Unicode, in UTF-8: its character 4 is a surrogate by itself",
        ),
    ],
)
def test_bad_flags_are_one_sentence(folder, flags, message, capsys):
    assert show(*flags) == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {message}"


def test_figures_need_their_extra_and_the_page_needs_none(folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "vaswani.pictures.attention_figures", raising=False)
    monkeypatch.delattr("vaswani.pictures.attention_figures", raising=False)
    assert show("--output", "x.png") == 1
    said = capsys.readouterr().err
    assert "error: output='x.png' needs the package matplotlib, which is not installed: " in said
    assert 'pip install ".[figures]"' in said
    assert show() == 0


def test_a_model_without_that_kind_is_named(folder, monkeypatch, capsys):
    found = type("Found", (), {"weights": {CROSS: np.zeros((1, 1, 1, 1))}})
    monkeypatch.setattr(module, "read_attention", lambda *_, **__: found)
    assert show("--output", "x.png", "--kind", "decoder") == 1
    assert "kind='decoder' must be one that this model has: cross" in capsys.readouterr().err
