import pytest

from vaswani.demo.interpreter import Interpreter
from vaswani.tokenization import train_tokenizer


@pytest.fixture
def interpreter(random_model) -> Interpreter:
    tokenizer = train_tokenizer(["one two three four", "eins zwei drei vier"], 270)
    model = random_model(vocab_size=270, source_lang="en", target_lang="de")
    return Interpreter(model, tokenizer)
