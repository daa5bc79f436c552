"""One sentence for the user, by any command, where a mistake of ours keeps its traceback."""

import pytest

from vaswani import cli
from vaswani.errors import UserError, first_line


def raising(error: Exception):
    def run(*_: str) -> int:
        raise error

    return run


def test_users_read_the_sentence_and_no_traceback(monkeypatch, capsys):
    monkeypatch.setattr(cli, "run", raising(UserError("num_beams=0 must be at least 1")))
    assert cli.main(["translate"]) == 1
    assert capsys.readouterr() == ("", "error: num_beams=0 must be at least 1\n")


def test_our_own_mistakes_are_not_hidden(monkeypatch):
    monkeypatch.setattr(cli, "run", raising(ValueError("shapes do not match")))
    with pytest.raises(ValueError, match="shapes do not match") as raised:
        cli.main(["translate"])
    assert not isinstance(raised.value, UserError)


def test_callers_catch_it_as_a_value_error():
    with pytest.raises(ValueError, match=r"^alpha=x must be a number$"):
        raise UserError("alpha=x must be a number")


def test_an_error_that_says_nothing_is_named():
    assert [first_line(error) for error in (ValueError("one\ntwo"), EOFError())] == ["one", "EOFError"]
