import random
from collections import Counter

import numpy as np
import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from training.data import bpe_dropout
from training.data.bpe_dropout import DIVISIONS, DroppingEncoder, merge
from training.data.preparation import encode_epoch, lengths
from training.data.word_bpe import learn_codes, word_tokenizer
from training.settings import DataSettings
from vaswani.errors import UserError
from vaswani.tokenization import train_tokenizer


TEXT = [
    "the small dog sleeps, doesn't it?",
    "der kleine Hund schläft  nicht",
    "",
    "small dogs & small cats",
    "☃ </s>",
] * 2


def of_bytes():
    return train_tokenizer(TEXT, 310)


def of_words():
    codes = learn_codes(TEXT, 20)
    return word_tokenizer(codes, {character for sentence in TEXT[:4] for character in sentence if character != " "})


def encode(encoder, sentences):
    ids, sizes = encoder(sentences)
    return [part.tolist() for part in np.split(ids, np.cumsum(sizes)[:-1])]


@pytest.mark.parametrize("make", [of_bytes, of_words])
def test_where_nothing_is_left_out_the_ids_are_the_tokenizers(make):
    tokenizer = make()
    assert encode(DroppingEncoder(tokenizer, 1e-12, 0), TEXT) == tokenizer(TEXT).input_ids


@pytest.mark.parametrize("make", [of_bytes, of_words])
def test_the_text_is_the_same_however_it_is_divided(make):
    tokenizer = make()
    plain = [tokenizer.decode(ids) for ids in tokenizer(TEXT).input_ids]
    for dropout in (0.1, 0.5, 0.999):
        rows = encode(DroppingEncoder(tokenizer, dropout, 0), TEXT)
        assert [tokenizer.decode(ids) for ids in rows] == plain
    assert sum(map(len, rows)) > 1.5 * sum(map(len, tokenizer(TEXT).input_ids))
    assert all(ids[-1] == tokenizer.eos_token_id and 0 not in ids[:-1] for ids in rows)


def test_ids_are_a_function_of_text_seed_and_epoch():
    tokenizer = of_bytes()

    def draw(seed, epoch, *before):
        encoder = DroppingEncoder(tokenizer, 0.3, seed)
        for other in before:
            encoder.start_epoch(other)
            encode(encoder, ["cats", *TEXT])
        encoder.start_epoch(epoch)
        return encode(encoder, TEXT)

    assert draw(1, 3) == draw(1, 3) == draw(1, 3, 0, 1, 2)  # as after a resume
    assert draw(1, 3) != draw(1, 4)
    assert draw(1, 3) != draw(2, 3)


def test_words_that_were_forgotten_are_divided_as_before(monkeypatch):
    encoder = DroppingEncoder(of_bytes(), 0.3, 0)
    expected = [encode(encoder, [sentence]) for sentence in TEXT]
    monkeypatch.setattr(bpe_dropout, "MAX_WORDS", 5)
    forgetful = DroppingEncoder(of_bytes(), 0.3, 0)
    assert [encode(forgetful, [sentence]) for sentence in TEXT] == expected
    assert len(forgetful.numbers) < len(encoder.numbers)


def test_each_occurrence_of_a_word_draws_for_itself():
    encoder = DroppingEncoder(of_bytes(), 0.3, 0)
    [ids] = encode(encoder, [" ".join(["small"] * 400)])
    words = Counter(tuple(row[:-1]) for row in encode(encoder, ["small"] * 400))
    assert 4 < len(words) <= DIVISIONS
    assert len(set(ids)) > 4


def test_words_draw_apart_from_one_another():
    encoder = DroppingEncoder(of_bytes(), 0.3, 0)
    sizes = [[len(encoder._divide(word, number)) for number in range(DIVISIONS)] for word in ("dog", "cat")]
    assert sizes[0] != sizes[1]


def test_merges_are_left_out_as_often_as_it_is_said():
    """Of one possible merge exactly the share `dropout` is left out; of a chain what algorithm 1 says."""
    generator = random.Random(1)
    one = [merge(list("ab"), {("a", "b"): 0}, 0.3, generator) for _ in range(20_000)]
    assert one.count(["a", "b"]) / len(one) == pytest.approx(0.3, abs=0.015)
    # "ab" is tried first, and again after "bc" only if that was left out too: P(abc whole) by enumeration.
    ranks = {("a", "b"): 0, ("b", "c"): 1, ("ab", "c"): 2, ("a", "bc"): 3}
    p = 0.3
    chain = Counter("".join(f"{part} " for part in merge(list("abc"), ranks, p, generator)) for _ in range(20_000))
    expected = {"abc ": (1 - p) * (1 - p) + p * (1 - p) * (1 - p), "ab c ": (1 - p) * p, "a b c ": p * p}
    expected["a bc "] = p * (1 - p) * p
    for division, share in expected.items():
        assert chain[division] / 20_000 == pytest.approx(share, abs=0.015), division


def test_the_first_learned_merge_goes_first():
    ranks = {("b", "c"): 0, ("a", "b"): 1}
    assert merge(list("abc"), ranks, 0.0, random.Random(0)) == ["a", "bc"]
    assert merge(list("aaa"), {("a", "a"): 0}, 0.0, random.Random(0)) == ["aa", "a"]


def test_an_epoch_has_the_pairs_that_are_short_enough_then():
    tokenizer, rows = of_bytes(), Dataset.from_dict({"source": TEXT, "target": TEXT})
    settings = DataSettings(source_lang="en", target_lang="de", max_source_length=40, max_target_length=40)
    encoded, counts = encode_epoch(rows, DroppingEncoder(tokenizer, 0.2, 1), settings, 0)
    assert (counts["kept"], counts["empty"]) == (len(encoded), 2)
    sizes, _ = lengths(encoded)
    assert encoded.column_names == ["input_ids", "labels", "source_length", "target_length"]
    assert [len(ids) for ids in encoded["input_ids"]] == sizes.tolist()
    assert 4 <= len(encoded) <= 8  # without the two empty ones
    assert encoded["input_ids"] != encoded["labels"]  # the sides draw apart
    short = DataSettings(source_lang="en", target_lang="de", max_source_length=12, max_target_length=12)
    assert encode_epoch(rows, DroppingEncoder(tokenizer, 0.2, 1), short, 0)[1]["kept"] < len(encoded)
    none = DataSettings("x", source_lang="en", target_lang="de", bpe_dropout=0.9, max_source_length=2)
    with pytest.raises(UserError, match=r"no usable pair is left in epoch 3, divided with bpe_dropout=0\.9: 0 kept, "):
        encode_epoch(rows, DroppingEncoder(tokenizer, 0.9, 1), none, 3)


def test_other_tokenizers_are_refused():
    parser = train_tokenizer(TEXT, 310, symbols=["(S"])
    with pytest.raises(
        UserError, match=r"^bpe_dropout=0\.1 needs a tokenizer that divides text into words and these by"
    ):
        DroppingEncoder(parser, 0.1, 0)


def test_a_saved_tokenizer_drops_alike(tmp_path):
    tokenizer = of_words()
    tokenizer.save_pretrained(tmp_path)
    rows = [
        encode(DroppingEncoder(each, 0.2, 5), TEXT) for each in (tokenizer, AutoTokenizer.from_pretrained(tmp_path))
    ]
    assert rows[0] == rows[1]
