"""`vaswani import` within this process: a model as OPUS-MT's, with SentencePiece vocabularies made here."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from opus_model import random_weights, save_opus
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    FSMTConfig,
    FSMTForConditionalGeneration,
)

from training.data.vocabulary import load_named_tokenizer
from vaswani import VaswaniForConditionalGeneration, cli


def save_fsmt(size):
    config = FSMTConfig(src_vocab_size=size, tgt_vocab_size=size, d_model=16, max_position_embeddings=200)
    for stack in ("encoder", "decoder"):
        for part, value in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16)):
            setattr(config, f"{stack}_{part}", value)
    random_weights(FSMTForConditionalGeneration(config)).save_pretrained("wmt")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_model_of_opus_becomes_ours_and_goes_back(capsys):
    theirs = save_opus(Path("opus"))
    assert cli.main(["import", "--from", "marian", "--model", "opus", "--output", "ours"]) == 0
    said = capsys.readouterr().err
    assert "greedy: 100 of 100 translations equal (chrF 100.0)" in said
    ours = AutoModelForSeq2SeqLM.from_pretrained("ours")
    assert f"Wrote ours, {ours.num_parameters():,} weights" in said
    assert type(ours) is VaswaniForConditionalGeneration
    assert (ours.config.activation_function, ours.config.lm_head_bias) == ("swish", True)
    assert (ours.config.source_lang, ours.config.target_lang) == ("en", "de")
    assert (ours.generation_config.num_beams, ours.generation_config.length_penalty_alpha) == (4, 0.6)
    sentence = "two small houses ."
    theirs_ids, our_ids = (AutoTokenizer.from_pretrained(place)(sentence).input_ids for place in ("opus", "ours"))
    assert our_ids == theirs_ids
    Path("text").write_text("one large dog\n")
    flags = ["--input", "text", "--output", "translated", "--max_new_tokens", "5", "--quiet"]
    assert cli.main(["translate", "--model", "ours", *flags]) == 0
    assert cli.main(["export", "--model", "ours", "--format", "marian", "--output", "back"]) == 0
    back = AutoModelForSeq2SeqLM.from_pretrained("back").state_dict()
    for name, weight in theirs.state_dict().items():
        assert torch.equal(back[name], weight), name


def save_fsmt_vocabulary(folder):
    """Write the files of an FSMTTokenizer, and return its size."""
    pytest.importorskip("sacremoses")
    letters = "abcdefghijklmnopqrstuvwxyzAT."
    types = ["<s>", "<pad>", "</s>", "<unk>", *letters, *(f"{letter}</w>" for letter in letters), "th", "the</w>"]
    for name in ("vocab-src.json", "vocab-tgt.json"):
        (folder / name).write_text(json.dumps({token: number for number, token in enumerate(types)}))
    (folder / "merges.txt").write_text("t h 9\nth e</w> 8\n")
    settings = {"tokenizer_class": "FSMTTokenizer", "langs": ["en", "de"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return len(types)


def test_a_model_of_fsmt_becomes_ours_with_its_tokenizer(tmp_path, capsys):
    (tmp_path / "wmt").mkdir()
    save_fsmt(save_fsmt_vocabulary(tmp_path / "wmt"))
    assert cli.main(["import", "--from", "fsmt", "--model", "wmt", "--output", "ours"]) == 0
    said = capsys.readouterr().err
    assert "greedy: 100 of 100 translations equal (chrF 100.0)" in said
    assert "warning" not in said
    tokenizer = load_named_tokenizer("ours", "model_name_or_path")  # as training does
    assert tokenizer("the man .").input_ids[-1] == tokenizer.eos_token_id == 2
    Path("text").write_text("the man .\n")
    flags = ["--input", "text", "--output", "translated", "--max_new_tokens", "5", "--quiet"]
    assert cli.main(["translate", "--model", "ours", *flags]) == 0


def test_a_model_of_tensor2tensor_becomes_ours(capsys):
    made = Path(__file__).parents[1] / "interop" / "tensor2tensor" / "tied.npz"
    Path("base").mkdir()
    Path("base/variables.npz").write_bytes(made.read_bytes())
    with np.load(made) as stored:
        Path("base/hparams.json").write_text(str(stored["hparams"]))
    flags = ["--from", "t2t-names", "--model", "base", "--output", "ours"]
    assert cli.main(["import", *flags]) == 1
    assert "target_space_id=None must be a row of target_space_embedding" in capsys.readouterr().err
    assert cli.main(["import", *flags, "--target_space_id", "8"]) == 0
    assert "nothing verified: tensor2tensor's has no form in transformers" in capsys.readouterr().err
    ours = AutoModelForSeq2SeqLM.from_pretrained("ours")
    assert (ours.config.vocab_size, ours.config.layer_norm_eps) == (24, 1e-6)
    assert ours.generation_config.num_beams == 4
    assert cli.main(["import", *flags, "--target_space_id", "8"]) == 1
    assert "output='ours' exists" in capsys.readouterr().err


def test_without_its_tokenizer_a_model_of_fsmt_is_still_imported(capsys):
    save_fsmt(23)
    assert cli.main(["import", "--from", "fsmt", "--model", "wmt", "--output", "ours"]) == 0
    assert "warning: the tokenizer was not carried over, and nothing verified: " in capsys.readouterr().err
    ours = AutoModelForSeq2SeqLM.from_pretrained("ours")
    assert (ours.config.source_lang, ours.config.position_embedding_type) == ("en", "learned")
    assert ours.generation_config.suppress_tokens == [1]


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--from", "fsmt"], "model='opus' is a 'marian' model, but --from says 'fsmt'"),
        (["--from", "marian", "--model", "nowhere"], "model='nowhere' must be a model folder or a Hub id"),
        (["--from", "marian", "--output", "opus"], "output='opus' exists: it must be a new folder"),
        (["--from", "marian", "--target_space_id", "0"], "target_space_id=0 is for --from t2t-names alone"),
        (["--from", "t2t-names"], "model='opus' must be a folder with hparams.json and a checkpoint of tensor2tensor"),
        (["--from", "opennmt"], "invalid choice: 'opennmt'"),
        (["--from", "marian", "--model", "half"], "model='half' cannot be loaded: Error no file"),
    ],
)
def test_bad_input_is_one_sentence(flags, complaint, capsys):
    save_opus(Path("opus"))
    Path("half").mkdir()
    Path("half", "config.json").write_bytes(Path("opus", "config.json").read_bytes())
    capsys.readouterr()
    assert cli.main(["import", "--model", "opus", "--output", "ours", *flags]) == 1
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1
    assert not Path("ours").exists()


def test_a_vocabulary_that_does_not_fit_is_refused(capsys):
    save_opus(Path("opus"), vocab_size=99, decoder_vocab_size=99)
    assert cli.main(["import", "--from", "marian", "--model", "opus", "--output", "ours"]) == 1
    assert "has a vocabulary of 99 types but a tokenizer of" in capsys.readouterr().err


def test_a_wrong_conversion_is_noticed(capsys, monkeypatch):
    save_opus(Path("opus"))

    def wrong(theirs):
        theirs.final_logits_bias.add_(torch.randn_like(theirs.final_logits_bias))
        ours = cli.import_.from_marian(theirs)
        theirs.final_logits_bias.zero_()
        return ours

    monkeypatch.setitem(cli.import_.FORMATS, "marian", wrong)
    assert cli.main(["import", "--from", "marian", "--model", "opus", "--output", "ours"]) == 1
    assert "log-probabilities differ" in capsys.readouterr().err
    assert not Path("ours").exists()
    assert cli.main(["import", "--from", "marian", "--model", "opus", "--output", "ours", "--no-verify"]) == 0


@pytest.mark.parametrize("library", ["marian", "fsmt"])
@pytest.mark.parametrize("kept", [0, 0.5], ids=["empty", "cut off"])
def test_a_file_of_weights_that_is_broken_is_told_in_a_sentence(library, kept, capsys):
    if library == "marian":
        save_opus(Path("wmt"))
    else:
        save_fsmt(23)
    weights = Path("wmt", "model.safetensors")
    weights.write_bytes(weights.read_bytes()[: int(kept * weights.stat().st_size)])
    capsys.readouterr()
    assert cli.main(["import", "--from", library, "--model", "wmt", "--output", "ours"]) == 1
    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith("error: model='wmt' cannot be loaded: Error while ")
    assert not Path("ours").exists()


def drop(part: str) -> int:
    """Leave out the weights with this in their name, and return how many these are."""
    weights = load_file("wmt/model.safetensors")
    kept = {name: weight for name, weight in weights.items() if part not in name}
    save_file(kept, "wmt/model.safetensors")
    return len(weights) - len(kept)


@pytest.mark.parametrize("library", ["marian", "fsmt"])
def test_weights_that_are_missing_are_not_made_up(library, capsys):
    if library == "marian":
        save_opus(Path("wmt"))
    else:
        save_fsmt(23)
    gone = drop(".fc1.")
    capsys.readouterr()
    assert cli.main(["import", "--from", library, "--model", "wmt", "--output", "ours"]) == 1
    [said] = capsys.readouterr().err.splitlines()
    assert f"model='wmt' has weights that do not fit its config.json: {gone} missing, such as model." in said
    assert not Path("ours").exists()


def test_sinusoids_may_be_missing_as_in_the_files_of_fsmt_on_the_hub():
    save_fsmt(23)
    assert cli.main(["import", "--from", "fsmt", "--model", "wmt", "--output", "whole"]) == 0
    assert drop("embed_positions") == 2
    assert cli.main(["import", "--from", "fsmt", "--model", "wmt", "--output", "ours"]) == 0
    whole, ours = (load_file(f"{folder}/model.safetensors") for folder in ("whole", "ours"))
    assert whole.keys() == ours.keys()
    assert all(torch.equal(weight, ours[name]) for name, weight in whole.items())
