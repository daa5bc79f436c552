import argparse

import torch

from vaswani.cli.shared import loading
from vaswani.cli.shared.loading import load_model
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
