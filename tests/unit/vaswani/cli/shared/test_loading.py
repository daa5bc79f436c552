import argparse

import pytest
import torch

from vaswani.cli.shared import loading
from vaswani.cli.shared.loading import load_model
from vaswani.ensemble import Ensemble
from vaswani.errors import UserError
from vaswani.interop import engines


FLAGS = {"model": "m", "tokenizer": "t", "device": "cpu", "dtype": "int8"}


def test_every_flag_reaches_the_library_that_computes(monkeypatch):
    monkeypatch.setattr(loading, "load", lambda *given, torch_compile: ("torch", *given, torch_compile))
    monkeypatch.setattr(engines, "load_engine", lambda *given: given)
    assert load_model(argparse.Namespace(engine="torch", **FLAGS, workers=3)) == ("torch", *FLAGS.values(), False)
    compiled = load_model(argparse.Namespace(engine="torch", **FLAGS, torch_compile=True))
    assert compiled == ("torch", *FLAGS.values(), True)
    assert load_model(argparse.Namespace(engine="x", **FLAGS, workers=3)) == ("x", *FLAGS.values(), 3)
    assert load_model(argparse.Namespace(**FLAGS)) == ("torch", *FLAGS.values(), False)  # a command without engines
    assert load_model(argparse.Namespace(engine="x", **FLAGS)) == ("x", *FLAGS.values(), None)


def test_cudnn_plans_no_attention(monkeypatch):
    said = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", said.append)
    monkeypatch.setattr(loading, "load", lambda *given, torch_compile: None)
    load_model(argparse.Namespace(engine="torch", **FLAGS))
    assert said == [False]


def test_further_models_are_loaded_like_the_first_and_join_it(random_model, tokenizer, monkeypatch):
    models, asked = {name: random_model(vocab_size=265) for name in "mab"}, []

    def load(name, *given, torch_compile):
        asked.append((name, *given, torch_compile))
        return models[name], tokenizer

    monkeypatch.setattr(loading, "load", load)
    ensemble, theirs = load_model(argparse.Namespace(**FLAGS, torch_compile=True, ensemble=["a", "b"]))
    assert asked == [(name, "t", "cpu", "int8", True) for name in "mab"]
    assert isinstance(ensemble, Ensemble)
    assert list(ensemble.members) == list(models.values())
    assert theirs is tokenizer


def test_models_with_another_vocabulary_do_not_join(random_model, tokenizer, monkeypatch):
    class Other:
        def get_vocab(self):
            return tokenizer.get_vocab() | {"more": 265}

    loaded = {"m": tokenizer, "a": Other()}
    monkeypatch.setattr(loading, "load", lambda name, *given, torch_compile: (random_model(), loaded[name]))
    with pytest.raises(UserError, match=r"^ensemble: model='a' has another vocabulary than the first"):
        load_model(argparse.Namespace(**FLAGS, ensemble=["a"]))
