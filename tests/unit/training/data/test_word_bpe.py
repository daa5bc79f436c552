import io
import re

import pytest
from subword_nmt.apply_bpe import BPE
from transformers import AutoTokenizer

from training.data.word_bpe import learn_codes, read_merges, word_tokenizer
from vaswani.errors import UserError


TEXT = ["ein kleiner hund schläft .", "der hund ist klein &amp; schläft .", "die kleine katze schläft nicht ."] * 3


@pytest.fixture
def codes():
    return learn_codes(TEXT, 20)


@pytest.fixture
def tokenizer(codes):
    return word_tokenizer(codes, {character for sentence in TEXT for character in sentence if character != " "})


def pieces(tokenizer, sentence):
    return [
        token.removesuffix("</w>") + ("" if token.endswith("</w>") else "@@") for token in tokenizer.tokenize(sentence)
    ]


def test_words_are_divided_as_subword_nmt_divides_them(codes, tokenizer):
    theirs = BPE(io.StringIO(codes))
    for sentence in [*TEXT, "die hunde schlafen und klettern", "&amp;amp; k", ""]:
        assert pieces(tokenizer, sentence) == theirs.process_line(sentence).split(), sentence
    other = BPE(io.StringIO(learn_codes(TEXT, 10)))  # the control
    assert any(pieces(tokenizer, sentence) != other.process_line(sentence).split() for sentence in TEXT)


def test_sentences_come_back_and_unknown_characters_do_not(tokenizer):
    assert tokenizer.decode(tokenizer(TEXT[1]).input_ids, skip_special_tokens=True) == TEXT[1]
    ids = tokenizer("der ☃").input_ids
    assert ids[-2:] == [tokenizer.unk_token_id, tokenizer.eos_token_id] == [1, 0]
    assert 0 not in tokenizer("a </s> b").input_ids[:-1]  # text that reads "</s>" is text
    assert tokenizer("der", "hund").input_ids == tokenizer("der hund").input_ids


def test_the_special_tokens_stand_where_those_of_our_own_vocabulary_do(codes, tokenizer, tmp_path):
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (0, len(tokenizer) - 1)
    merged = {left + right for left, right in read_merges(codes)}
    characters = {re.sub("</w>$", "", symbol) for symbol in tokenizer.get_vocab()} - merged
    assert {"ä", "&", ";"} <= characters
    assert tokenizer.convert_ids_to_tokens([2, 3, 4]) == ["&", ".", ";"]  # whatever the hashes of this process
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again(TEXT).input_ids == tokenizer(TEXT).input_ids
    assert set(again("a")) == {"input_ids", "attention_mask"}


def test_more_merges_than_the_text_has_are_refused():
    with pytest.raises(UserError, match=r"^num_merges=500 must be at most 2: no other pair occurs twice in the text$"):
        learn_codes(["ab cd", "ab cd", "abc"], 500)


@pytest.mark.parametrize("text", [[], ["", "  "], ["a b", "a"]], ids=["nothing", "blank", "single characters"])
def test_text_without_anything_to_merge_is_refused(text):
    with pytest.raises(UserError, match=r"^the training text must hold a word of two characters at least: "):
        learn_codes(text, 5)
