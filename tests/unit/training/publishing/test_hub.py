"""The sentences alone: tests/hub/test_hub_circle.py goes to a Hub and back."""

from types import SimpleNamespace

import pytest
from huggingface_hub import HfApi

from training.publishing.hub import open_repository, push
from vaswani.errors import UserError


def break_off(*given, **named):
    raise ConnectionResetError("the line broke\nand more")


def test_the_full_name_is_returned(monkeypatch):
    monkeypatch.setattr(HfApi, "create_repo", lambda self, name, exist_ok: SimpleNamespace(repo_id=f"me/{name}"))
    assert open_repository("model") == "me/model"


def test_what_went_wrong_is_said_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(HfApi, "create_repo", break_off)
    monkeypatch.setattr(HfApi, "upload_folder", break_off)
    with pytest.raises(UserError, match=r"hub_model_id='me/model' must be a repository .*: the line broke$"):
        open_repository("me/model")
    with pytest.raises(UserError, match=rf"the line broke; to send the rest: hf upload me/model '{tmp_path}/my run'$"):
        push(tmp_path / "my run", "me/model")
