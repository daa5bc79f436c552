from collections.abc import Callable

import pytest
from transformers import PreTrainedTokenizerFast

from vaswani import VaswaniForConditionalGeneration
from vaswani.tokenization import train_tokenizer


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    """Return one of 265 types, trained on six words."""
    return train_tokenizer(["one two three four five six"], 265)


@pytest.fixture
def model(random_model: Callable[..., VaswaniForConditionalGeneration]) -> VaswaniForConditionalGeneration:
    """Return a small Transformer of random weights for these types."""
    return random_model(vocab_size=265)
