"""Models from folders: what is loaded, and what is refused in a sentence."""

import json
from pathlib import Path

import pytest
import torch
from marian_twin import marian_twin
from transformers import CompileConfig

from vaswani import VaswaniForConditionalGeneration, loading
from vaswani.errors import UserError
from vaswani.loading import load
from vaswani.models import int8_vaswani
from vaswani.models.int8_vaswani import is_quantized, kernel_problem
from vaswani.tokenization import train_tokenizer
from vaswani.translation import translate


pytestmark = pytest.mark.smoke


def test_models_and_tokenizers_that_do_not_fit_are_refused(model, tokenizer, tmp_path):
    model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"has no tokenizer: it must hold a tokenizer\.json"):
        load(str(tmp_path))
    tokenizer.save_pretrained(tmp_path)
    assert load(str(tmp_path), device="cpu")[0].dtype == torch.float32
    train_tokenizer(["one two three four five six"], 264).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="has a vocabulary of 265 types but a tokenizer of 264: both must be equal"):
        load(str(tmp_path))
    with pytest.raises(UserError, match="model='nowhere/at all' must be a model folder or a Hub id"):
        load("nowhere/at all")
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="device='abacus' must be a device of this machine"):
        load(str(tmp_path), device="abacus")
    with pytest.raises(UserError, match=r"^device='meta' must be a device that computes$"):
        load(str(tmp_path), device="meta")


@pytest.fixture
def folder(model, tokenizer, tmp_path):
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("model.safetensors", b"torn", "cannot be loaded: .*header"),
        ("config.json", {"encoder_ffn_dim": 64}, "do not fit its config.json: 6 mismatched, such as model.enc"),
        (
            "config.json",
            {"encoder_layers": 3},
            "do not fit its config.json: [0-9]+ missing, such as model.enc",
        ),
        ("config.json", {"d_model": "x"}, "cannot be loaded: .*d_model"),
        ("generation_config.json", b"{", "has a generation_config.json that cannot be used: "),
        ("generation_config.json", {"num_beams": "four"}, "cannot be used: num_beams='four' must be a whole number"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused_in_a_sentence(folder, file, content, message, capfd):
    path = Path(folder) / file
    if isinstance(content, dict):
        path.write_text(json.dumps(json.loads(path.read_text()) | content))
    else:
        path.write_bytes(content)
    with pytest.raises(UserError, match=f"^model='.*' .*{message}") as error:
        load(folder)
    assert "\n" not in str(error.value)
    assert "LOAD REPORT" not in capfd.readouterr().err


@pytest.mark.skipif(kernel_problem() is not None, reason=str(kernel_problem()))
def test_int8_is_made_at_load_and_the_folder_stays_as_it_is(folder, tokenizer, monkeypatch):
    files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: "cuda")  # which int8 does not choose
    model, _ = load(folder, dtype="int8")
    assert is_quantized(model)
    assert {path.name: path.read_bytes() for path in Path(folder).iterdir()} == files
    sentences = ["one two", "", "three", "one two three four five six", "  ", "two"]
    one_by_one, together = (translate(model, tokenizer, sentences, max_batch_tokens=size) for size in (1, 1000))
    assert together == one_by_one


@pytest.mark.parametrize("is_fast", [True, False])
def test_a_cpu_that_is_slow_in_bfloat16_is_warned_of(is_fast, folder, monkeypatch, caplog):
    monkeypatch.setattr(loading, "multiplies_bfloat16", lambda: is_fast)
    load(folder)
    assert not caplog.text
    load(folder, dtype="bfloat16")
    assert ("no instructions for bfloat16" in caplog.text) != is_fast


def test_where_int8_is_missing_float32_takes_its_place_and_a_warning_says_so(folder, monkeypatch, caplog):
    monkeypatch.setattr(int8_vaswani, "kernel_problem", lambda: "no VNNI")
    model, _ = load(folder, dtype="int8")
    assert model.dtype == torch.float32
    assert "int8 is not possible here: no VNNI; the model computes in float32 instead" in caplog.text


def test_int8_is_refused_on_a_gpu_and_for_models_of_others(folder, model):
    with pytest.raises(UserError, match=r"dtype='int8' does not go together with .*: int8 is for CPUs"):
        load(folder, device="meta", dtype="int8")
    marian_twin(model).save_pretrained(folder)
    with pytest.raises(UserError, match="dtype='int8' is for Transformers of this library"):
        load(folder, dtype="int8")


def test_steps_are_recorded_on_a_gpu_without_being_asked_for(folder, monkeypatch):
    assert load(folder, device="cpu")[0].generation_config.compile_config is None
    monkeypatch.setattr(VaswaniForConditionalGeneration, "device", torch.device("cuda"))
    assert load(folder, device="cpu")[0].generation_config.compile_config == CompileConfig()
    monkeypatch.setattr(VaswaniForConditionalGeneration, "fused", lambda self, config: None)  # hooks, say
    assert load(folder, device="cpu")[0].generation_config.compile_config is None
