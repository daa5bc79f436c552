import itertools

import pytest
import torch
from small_parser import SYMBOLS, make_parser, make_tokenizer
from transformers import AutoTokenizer

from vaswani.models.legal_trees_vaswani import MAX_OPENERS, PARTS_OF_SPEECH, LegalTrees
from vaswani.models.trees_vaswani import restore
from vaswani.tokenization import train_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


def allowed(tokenizer, symbols: str, words: str, tags=None) -> set[str]:
    """Return the symbols that may follow others."""
    ids = [tokenizer.pad_token_id, *tokenizer(symbols).input_ids[:-1]]
    legal = LegalTrees(tokenizer, [words.split()], tags).legal(torch.tensor([ids]))[0]
    return set(tokenizer.convert_ids_to_tokens(legal.nonzero()[:, 0]))


OPENERS = {symbol for symbol in SYMBOLS if symbol[0] == "(" and symbol[-1] != ")"}
TAGS = {"(DT)", "(NN)", "(VBZ)", "(PRP)", "(VBP)", "(RB)", "(POS)"}


@pytest.mark.parametrize(
    ("symbols", "words", "expected"),
    [
        ("", "a b", OPENERS),
        ("", "a", OPENERS | TAGS),
        ("(S", "a b", OPENERS | TAGS),
        ("(S", ", b", OPENERS | {"(,)"}),
        ("(S", ": b", OPENERS | TAGS),  # the vocabulary has no (:)
        ("(S", "' b", OPENERS | TAGS | {"(.)", "(,)", "('')"}),
        ("(S (NN)", "a b", OPENERS | TAGS),  # the root stays open while words are left
        ("(S (NP (NN)", "a b", OPENERS | TAGS | {")NP"}),
        ("(S (NP (NN) )NP", "a b", OPENERS | TAGS),
        ("(S (NP (NN) )NP (VP (RB) )VP", "a b", {")S"}),
        ("(S (NN) (NP (RB)", "a b", {")NP"}),
        ("(S (NN) (RB) )S", "a b", {"</s>"}),
        ("(NN)", "a", {"</s>"}),
        ("(S" * MAX_OPENERS, "a b", TAGS),
    ],
)
def test_what_may_follow(tokenizer, symbols, words, expected):
    assert allowed(tokenizer, symbols, words) == expected


def test_given_parts_of_speech_are_the_only_ones(tokenizer):
    assert allowed(tokenizer, "(S (NN)", "a b", [["NN", "RB"]]) == OPENERS | {"(RB)"}
    assert allowed(tokenizer, "(S (NN)", "a b", [None]) == OPENERS | TAGS


def test_each_row_follows_its_own_sentence(tokenizer):
    legal = LegalTrees(tokenizer, [["a"], ["a", "b"]])
    ids = torch.tensor([tokenizer("(S (NN)").input_ids[:-1]] * 6)  # three beams each
    one, two = (set(tokenizer.convert_ids_to_tokens(row.nonzero()[:, 0])) for row in legal.legal(ids)[[2, 3]])
    assert (one, two) == ({")S"}, OPENERS | TAGS)


def test_whatever_is_allowed_becomes_a_tree_and_whatever_is_not_does_not(tokenizer):
    """Go through all sequences of few symbols up to a length, and compare with the repairs that they need."""
    few, longest = ["(S", "(NP", "(NN)", ")NP", ")S"], 6
    sequences = (" ".join(each) for length in range(longest + 1) for each in itertools.product(few, repeat=length))
    expected = {symbols for symbols in sequences if restore(symbols, ["a", "b"]).repairs == 0}
    found, begun = set(), [""]
    while begun:
        symbols = begun.pop()
        following = allowed(tokenizer, symbols, "a b")
        found |= {symbols} if "</s>" in following else set()
        if len(symbols.split()) < longest:
            begun += [f"{symbols} {after}".strip() for after in few if after in following]
    assert found == expected
    assert len(found) == 14


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_model_that_knows_nothing_writes_trees(tokenizer, num_beams):
    sentences = [["the", "dog", "sleeps", "."], ["tea"], ["a", "cat", "sees", "tea", ",", "we", "drink"]]
    for seed in range(3):
        inputs = tokenizer([" ".join(words) for words in sentences], padding=True, return_tensors="pt")
        legal = LegalTrees(tokenizer, sentences)
        ids = make_parser(seed).generate(**inputs, num_beams=num_beams, logits_processor=[legal])
        for text, words in zip(tokenizer.batch_decode(ids, skip_special_tokens=True), sentences, strict=True):
            assert restore(text, words).repairs == 0


def test_a_tokenizer_without_symbols_and_an_unknown_tag_are_refused(tokenizer):
    with pytest.raises(ValueError, match="the tokenizer has no symbols of trees: the model must be a parser"):
        LegalTrees(train_tokenizer(["a b"], 260), [["a"]])
    with pytest.raises(ValueError, match="the part of speech 'XY' of 'b' must be one that the model knows: '', ,, "):
        LegalTrees(tokenizer, [["a", "b"]], [["NN", "XY"]])


def test_a_word_of_the_dictionary_has_only_the_parts_of_speech_that_stand_there(tmp_path):
    tokenizer = make_tokenizer()
    tokenizer.init_kwargs[PARTS_OF_SPEECH] = {"dog": "NN VBP", ",": "NN", "cat": "XY"}
    tokenizer.save_pretrained(tmp_path)  # the dictionary goes wherever the tokenizer goes
    for form in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        assert allowed(form, "(S", "dog b") == OPENERS | {"(NN)", "(VBP)"}
        assert allowed(form, "(S", "new b") == OPENERS | TAGS
        assert allowed(form, "(S", ", b") == OPENERS | {"(,)"}  # punctuation has its own
        assert allowed(form, "(S", "cat b") == OPENERS | TAGS  # the vocabulary has no XY
        assert allowed(form, "(S", "dog b", [["RB", "RB"]]) == OPENERS | {"(RB)"}
