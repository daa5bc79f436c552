import gc
import importlib
import sys

import pytest

from vaswani.cli.shared.startup import large_imports


@pytest.fixture
def frozen(monkeypatch):
    """Pretend that torch is not imported yet, and return what is done to the garbage collector at the end."""
    done = []
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(gc, "freeze", lambda: done.append("freeze"))
    return done


def test_no_garbage_is_collected_during_large_imports(frozen):
    with large_imports():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert frozen == ["freeze"]


def test_a_failed_import_leaves_the_collector_at_work(frozen):
    with pytest.raises(ModuleNotFoundError), large_imports():
        importlib.import_module("vaswani.cli.nothing")
    assert gc.isenabled()


def test_where_torch_is_there_already_nothing_changes(frozen, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with large_imports():
        assert gc.isenabled()
    assert frozen == []


def test_a_collector_that_is_off_stays_off(frozen):
    gc.disable()
    try:
        with large_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert frozen == []
