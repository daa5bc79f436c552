import os
import signal

import pytest

from vaswani import cli


pytest.importorskip("gradio", reason="the extra [demo] is not installed")
module = pytest.importorskip("vaswani.cli.demo")


@pytest.fixture
def served(monkeypatch) -> dict:
    given = {}
    monkeypatch.setattr(module, "load_model", lambda options: given.update(options=options) or ("model", "tokenizer"))
    monkeypatch.setattr(module, "Interpreter", lambda *loaded: loaded)
    monkeypatch.setattr(module, "serve", lambda interpreter, **flags: given.update(flags, interpreter=interpreter))
    return given


def test_its_flags_reach_the_model_and_the_server(served):
    flags = ["--server_name", "0.0.0.0", "--server_port", "8080", "--device", "cpu", "--dtype", "float32"]
    flags += ["--engine", "onnxruntime"]
    assert cli.main(["demo", "--model", "m", "--tokenizer", "t", *flags]) == 0
    options = vars(served.pop("options"))
    asked = {name: options[name] for name in ("model", "tokenizer", "device", "dtype", "engine")}
    assert list(asked.values()) == ["m", "t", "cpu", "float32", "onnxruntime"]
    assert served == {"interpreter": ("model", "tokenizer"), "server_name": "0.0.0.0", "server_port": 8080}


def test_only_this_machine_is_served_unless_asked_for(served):
    assert cli.main(["demo", "--model", "m"]) == 0
    assert (served["server_name"], served["server_port"]) == ("127.0.0.1", None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_it_serves_until_a_signal_ends_it_in_order(number, served, monkeypatch, capsys):
    monkeypatch.setattr(module, "serve", lambda *_, **__: os.kill(os.getpid(), number))
    assert cli.main(["demo", "--model", "m"]) == 0
    assert capsys.readouterr().err == ""


def test_a_port_that_is_none_and_one_in_use_are_told_in_a_sentence(served, monkeypatch, capsys):
    for port in ("0", "65536"):
        assert cli.main(["demo", "--model", "m", "--server_port", port]) == 1

    def refuse(*_, **__):
        raise OSError("Cannot find empty port in range: 80-80.")

    monkeypatch.setattr(module, "serve", refuse)
    assert cli.main(["demo", "--model", "m", "--server_port", "80"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "error: server_port=0 must be from 1 to 65535",
        "error: server_port=65536 must be from 1 to 65535",
        "error: server_name='127.0.0.1', server_port=80 cannot be served on: another program may use that port; "
        "choose another, or leave it out",
    ]


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("server_name", "x"),
        ("server_port", "1"),
        ("tokenizer", "x"),
        ("device", "cpu"),
        ("dtype", "float32"),
        ("engine", "ctranslate2"),
    ],
)
def test_what_only_serving_would_heed_is_refused_beside_a_space(served, flag, value, capsys):
    assert cli.main(["demo", "--model", "m", "--space", "s", f"--{flag}", value]) == 1
    assert capsys.readouterr().err == f"error: {flag} is for serving: space only writes a folder\n"


def test_a_space_is_written_instead(served, monkeypatch, capsys):
    written = []
    monkeypatch.setattr(module, "write_space", lambda *paths: written.append([str(path) for path in paths]))
    assert cli.main(["demo", "--model", "m", "--space", "s"]) == 0
    assert written == [["m", "s"]]
    assert served == {}
    assert capsys.readouterr().out == "Written: s\n"
