import argparse

import pytest

from vaswani.cli.shared.flags import add_engine_flag
from vaswani.interop import engines


@pytest.mark.parametrize("engine", ["ctranslate2", "onnxruntime"])
def test_the_engine_gets_every_argument(engine, monkeypatch):
    monkeypatch.setitem(engines.LOADERS, engine, lambda *arguments: arguments)
    assert engines.load_engine(engine, "a", "b", "cpu", "int8", 3) == ("a", "b", "cpu", "int8", 3)


def test_the_flag_offers_all_of_them():
    parser = argparse.ArgumentParser()
    add_engine_flag(parser)
    for name in ("torch", *engines.LOADERS):
        assert parser.parse_args(["--engine", name]).engine == name
    assert parser.parse_args([]).engine == "torch"
