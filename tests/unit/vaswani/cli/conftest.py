import pytest
from huggingface_hub import constants


@pytest.fixture(autouse=True)
def offline(monkeypatch) -> None:
    """Let nothing ask the Hub, which without a network takes the better part of a minute to give up."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
