import random
import shutil

import pytest
from opus_model import save_vocabulary
from opus_model import sentences as marian_sentences
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from training.data import sentence_encoder as encoding
from training.data.sentence_encoder import SentenceEncoder, description, encodes_words_apart, split_into_words
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
        assert len(encoder.numbers) < 3600  # with those of one call


def test_the_control_that_splits_at_every_space_is_caught(tokenizer, sentences, monkeypatch):
    monkeypatch.setattr(encoding, "split_into_words", lambda sentence: sentence.split(" "))
    with pytest.raises(AssertionError):
        assert_same_ids(tokenizer, SentenceEncoder(tokenizer), sentences)


def test_a_tokenizer_that_divides_otherwise_is_called_as_it_is(tokenizer, sentences):
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    assert not encodes_words_apart(tokenizer)
    assert_same_ids(tokenizer, SentenceEncoder(tokenizer), sentences)


def test_where_tokens_are_found_across_words_these_are_not_looked_up(tokenizer, sentences):
    tokenizer.split_special_tokens = False
    assert_same_ids(tokenizer, SentenceEncoder(tokenizer), sentences)
    tokenizer.split_special_tokens = True
    tokenizer.add_tokens(["a b"])
    assert_same_ids(tokenizer, SentenceEncoder(tokenizer), ["c a b c"])


@pytest.mark.parametrize("by_words", [True, False])
def test_truncation_and_padding_change_nothing_and_dropout_is_drawn_each_time(tokenizer, sentences, by_words):
    if not by_words:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    expected = [array.tolist() for array in SentenceEncoder(tokenizer)(sentences)]
    tokenizer.backend_tokenizer.enable_truncation(2)
    tokenizer.backend_tokenizer.enable_padding(length=50)
    assert [array.tolist() for array in SentenceEncoder(tokenizer)(sentences)] == expected
    assert encodes_words_apart(tokenizer) == by_words
    tokenizer.backend_tokenizer.model.dropout = 0.1
    assert not encodes_words_apart(tokenizer)  # a word would have the ids of its first time


def test_a_tokenizer_in_python_encodes_each_side_by_its_own_model(tmp_path):
    save_vocabulary(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert not tokenizer.is_fast
    encoder, text = SentenceEncoder(tokenizer), marian_sentences("target")
    (sources, _), (targets, lengths) = encoder(text), encoder(text, is_target=True)
    assert sources.tolist() != targets.tolist()
    expected = tokenizer(text_target=text).input_ids
    assert targets.tolist() == [id_ for row in expected for id_ in row]
    assert lengths.tolist() == list(map(len, expected))


def test_only_the_same_tokenizer_has_the_same_description(tmp_path):
    folders = [tmp_path / name for name in ("one", "copy", "other")]
    folders[0].mkdir()
    save_vocabulary(folders[0])
    for folder in folders[1:]:
        shutil.copytree(folders[0], folder)
    (folders[2] / "source.spm").write_bytes((folders[2] / "target.spm").read_bytes())
    one, copy, other = (description(AutoTokenizer.from_pretrained(folder)) for folder in folders)
    assert one == copy != other
    fast = [train_tokenizer([text], 259) for text in ("ab ab abc", "ab ab abc", "bc bc abc")]
    one, copy, other = map(description, fast)
    assert one == copy != other
