import random

import pytest
from tokenizers import pre_tokenizers

from training.data import sentence_encoder as encoding
from training.data.sentence_encoder import SentenceEncoder, encodes_words_apart, split_into_words
from vaswani.tokenization import train_tokenizer


# What the pattern that divides a text treats apart: letters, marks, digits, signs, apostrophes, all kinds of space.
PARTS = [
    *"abcAB12.,'-",
    "'s",
    "'ll",
    "ü",
    "e\u0301",
    "\u200d",
    "中",
    "👩‍👧",
    "</s>",
    "<pad>",
    " ",
    " ",
    " ",
    "  ",
    "\t",
    "\u00a0",
]
PARTS += ["\u3000", "\u2028", "\n", "\x1c", "\x85", "\u200b", "\x00"]


@pytest.fixture(scope="module")
def sentences():
    rng = random.Random(1)
    return ["", " ", "a", *("".join(rng.choices(PARTS, k=rng.randrange(1, 20))) for _ in range(5000))]


@pytest.fixture
def tokenizer(sentences):
    return train_tokenizer(sentences[:2000], 300)


def assert_same_ids(tokenizer, encoder, sentences):
    ids, lengths = encoder(sentences)
    expected = tokenizer(sentences).input_ids
    assert lengths.tolist() == list(map(len, expected))
    assert ids.tolist() == [id_ for row in expected for id_ in row]


def test_words_that_are_looked_up_give_the_ids_of_the_whole_sentence(tokenizer, sentences, monkeypatch):
    monkeypatch.setattr(encoding, "MAX_WORDS", 3000)  # so that it forgets now and then
    encoder = SentenceEncoder(tokenizer)
    assert encoder.by_words
    assert any(len(split_into_words(sentence)) > 2 for sentence in sentences)
    for first in range(0, len(sentences), 500):
        assert_same_ids(tokenizer, encoder, sentences[first : first + 500])


def test_the_control_that_splits_at_every_space_is_caught(tokenizer, sentences, monkeypatch):
    monkeypatch.setattr(encoding, "split_into_words", lambda sentence: sentence.split(" "))
    with pytest.raises(AssertionError):
        assert_same_ids(tokenizer, SentenceEncoder(tokenizer), sentences)


def test_a_tokenizer_that_divides_otherwise_is_called_as_it_is(tokenizer, sentences):
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    assert not encodes_words_apart(tokenizer)
    assert_same_ids(tokenizer, SentenceEncoder(tokenizer), sentences)
