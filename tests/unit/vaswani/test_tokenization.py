import random

import pytest
from transformers import AutoTokenizer

from vaswani.tokenization import SMALLEST_VOCAB_SIZE, train_tokenizer


pytestmark = pytest.mark.smoke
SENTENCES = ["The dog sees the cat.", "Der Hund sieht die Katze.", "Ein großer Hund schläft."] * 20


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(SENTENCES, 300).save_pretrained(folder)
    assert {path.name for path in folder.iterdir()} == {"tokenizer.json", "tokenizer_config.json"}
    return AutoTokenizer.from_pretrained(folder)


TEXTS = ["", " ", "a", " a", "a ", "  two  spaces  ", "tab\tand\nline\r\n", "</s> and <pad> as text", "don't stop , ."]
TEXTS += ["日本語 👩‍👩‍👧 \U0010ffff", "e\u0301 é ﬁ \uff21", "\u2028\u0085\x00\x07\ufeff", "▁ Ġ", "\u00a0nbsp"]


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_survives(tokenizer, text):
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text


def test_random_unicode_survives_one_by_one_and_in_batches(tokenizer):
    generator = random.Random(1)
    code_points = [*range(1, 0xD800), *range(0xE000, 0x110000)]
    texts = ["".join(chr(generator.choice([*code_points[:300], 32, generator.choice(code_points)])) for _ in range(9))]
    texts += ["".join(map(chr, generator.choices(code_points, k=generator.randrange(12)))) for _ in range(300)]
    assert tokenizer.batch_decode(tokenizer(texts).input_ids, skip_special_tokens=True) == texts


def test_ids_end_with_the_end_and_padding_is_the_last_id(tokenizer):
    ids = tokenizer("The dog </s> <pad>").input_ids
    assert ids[-1] == tokenizer.eos_token_id == 0
    assert tokenizer.pad_token_id == len(tokenizer) - 1 == 299
    assert not {0, 299} & set(ids[:-1])
    assert set(tokenizer("x")) == {"input_ids", "attention_mask"}


def test_a_pair_of_texts_ends_with_the_end_too(tokenizer):
    assert tokenizer("a", "b").input_ids == [*tokenizer("a").input_ids[:-1], *tokenizer("b").input_ids]


def test_a_word_is_the_same_at_the_start_and_within(tokenizer):
    first, second = tokenizer("Hund Hund").input_ids[:-1][: len(tokenizer("Hund").input_ids) - 1], tokenizer("Hund")
    assert first == second.input_ids[:-1]


def test_training_is_deterministic():
    first, second = (train_tokenizer(SENTENCES, 300).backend_tokenizer.to_str() for _ in range(2))
    assert first == second


@pytest.mark.parametrize(("size", "message"), [(100, "must be at least 258"), (5000, "supports: at most [0-9]+")])
def test_impossible_vocabulary_sizes_are_refused(size, message):
    assert SMALLEST_VOCAB_SIZE == 258
    with pytest.raises(ValueError, match=f"vocab_size={size} .*{message}"):
        train_tokenizer(SENTENCES, size)


def test_symbols_are_one_type_each_with_the_space_before_them():
    symbols = ["(S", "(SBAR", ")S", "(NN)", "(-LRB-)"]
    tokenizer = train_tokenizer(SENTENCES, 300, symbols=symbols)
    assert (len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id) == (300, 299, 0)
    ids = tokenizer("(S (SBAR (-LRB-) (NN) )S").input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == ["(S", "(SBAR", "(-LRB-)", "(NN)", ")S", "</s>"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "(S(SBAR(-LRB-)(NN))S"
    plain = train_tokenizer(SENTENCES, 300 - len(symbols))
    for text in ("The dog sees", "NN S SBAR -LRB-"):
        assert tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids) == plain.convert_ids_to_tokens(
            plain(text).input_ids
        )
    with pytest.raises(ValueError, match="vocab_size=262 must be at least 263: 256 bytes, </s> and <pad>, and 5 symb"):
        train_tokenizer(SENTENCES, 262, symbols=symbols)
