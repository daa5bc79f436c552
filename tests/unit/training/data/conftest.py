from pathlib import Path

import datasets
import pytest
from transformers import PreTrainedTokenizerFast

from vaswani.tokenization import train_tokenizer


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """Give a test a cache of its own."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(["a b c"], 258)
