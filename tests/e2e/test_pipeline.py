"""`pipeline("translation")` as transformers 4 had it."""

import warnings
from collections import deque

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset, DatasetDict
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianConfig, MarianMTModel, pipeline
from transformers.pipelines.pt_utils import KeyDataset

from vaswani import TranslationPipeline
from vaswani.tokenization import train_tokenizer


pytestmark = pytest.mark.smoke
SENTENCES = ["one two three", "ten nine", "four seven one", "six", "two two"]
TRANSLATIONS = ["drei zwei eins", "neun zehn", "eins sieben vier", "sechs", "zwei zwei"]


@pytest.fixture(scope="module")
def translator(finished_run):
    return pipeline("translation", model=str(finished_run / "model"))


def test_a_string_and_a_list_give_a_flat_list_of_dicts(translator):
    assert translator(SENTENCES[0]) == [{"translation_text": TRANSLATIONS[0]}]
    assert translator(SENTENCES[:1]) == [{"translation_text": TRANSLATIONS[0]}]
    expected = [{"translation_text": text} for text in TRANSLATIONS]
    for batch_size in (1, 2, 5, 8):
        assert translator(SENTENCES, batch_size=batch_size) == expected
    assert translator([]) == []


def test_a_dataset_and_a_generator_give_one_result_each_in_order(translator):
    rows = Dataset.from_dict({"en": SENTENCES})
    expected = [[{"translation_text": text}] for text in TRANSLATIONS]
    for batch_size in (1, 3):
        assert list(translator(KeyDataset(rows, "en"), batch_size=batch_size)) == expected
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert list(translator((row for row in SENTENCES), batch_size=batch_size)) == expected


def test_whatever_has_a_length_gives_a_list(translator):
    rows = Dataset.from_dict({"en": SENTENCES, "rows": [{"en": sentence} for sentence in SENTENCES]})
    expected = [{"translation_text": text} for text in TRANSLATIONS]
    for sentences in (
        tuple(SENTENCES),
        deque(SENTENCES),
        dict.fromkeys(SENTENCES).keys(),
        rows["en"],
        rows["rows"]["en"],
        rows.with_format("numpy")["en"],
        np.array(SENTENCES),
        pd.Series(SENTENCES, index=range(5, 10)),
    ):
        for batch_size in (1, 3):
            assert translator(sentences, batch_size=batch_size) == expected, type(sentences)
    several = translator(tuple(SENTENCES[:2]), num_beams=4, num_return_sequences=3)
    assert several == translator(SENTENCES[:2], num_beams=4, num_return_sequences=3)
    for nothing in ((), np.array([], dtype=str), rows.select([])["en"], KeyDataset(rows.select([]), "en")):
        assert translator(nothing) == []


def test_whatever_yields_strings_gives_an_iterator(translator):
    rows = Dataset.from_dict({"en": SENTENCES}).to_iterable_dataset()
    expected = [[{"translation_text": text}] for text in TRANSLATIONS]
    seen = []
    for sentences in (
        iter(SENTENCES),
        map(str, SENTENCES),
        rows["en"],
        (seen.append(one) or one for one in SENTENCES),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = iter(translator(sentences))
            assert next(results) == expected[0]
            assert len(seen) < len(SENTENCES)  # nothing is read ahead
            assert list(results) == expected[1:], type(sentences)


def test_what_has_columns_or_holds_no_strings_is_refused(translator):
    rows = Dataset.from_dict({"en": SENTENCES, "de": TRANSLATIONS})
    tables = (rows, rows.to_iterable_dataset(), rows.to_iterable_dataset().with_format("torch"), rows.to_pandas())
    for table in (*tables, DatasetDict({"test": rows}), {"en": SENTENCES}, np.array([SENTENCES])):
        name = type(table).__name__
        with pytest.raises(
            ValueError, match=rf"^inputs must be strings, but a {name} has columns: choose one, such as"
        ):
            translator(table)
    for inputs, found in ((3, "int: 3"), (None, "NoneType"), (b"one", "bytes: b'one'"), ((3,), "int: 3")):
        with pytest.raises(ValueError, match=f"^a sentence must be a string, not {found}"):
            translator(inputs)


def test_the_languages_can_be_named_but_no_others(translator, finished_run):
    expected = [{"translation_text": TRANSLATIONS[0]}]
    assert translator(SENTENCES[0], src_lang="en", tgt_lang="de") == expected
    folder = str(finished_run / "model")
    assert pipeline("translation", model=folder, src_lang="en", tgt_lang="de")(SENTENCES[0]) == expected
    assert pipeline("translation_en_to_de", model=folder, tgt_lang="de")(SENTENCES[0], src_lang="en") == expected
    message = "^tgt_lang='fr' must be 'de': this model translates from 'en' to 'de'$"
    for call in (
        lambda: translator(SENTENCES[0], src_lang="en", tgt_lang="fr"),
        lambda: translator((one for one in SENTENCES), tgt_lang="fr"),
        lambda: pipeline("translation", model=folder, tgt_lang="fr"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(ValueError, match=r"^src_lang='de' must be 'en'"):
        translator(SENTENCES[0], src_lang="de", tgt_lang="en")


def test_languages_are_refused_where_the_model_does_not_know_its_own():
    tokenizer = train_tokenizer(["one two three four"], 262)
    config = MarianConfig(
        vocab_size=262, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, pad_token_id=261, eos_token_id=0,
        decoder_start_token_id=261,
    )  # fmt: skip
    marian = TranslationPipeline(model=MarianMTModel(config), tokenizer=tokenizer, max_new_tokens=2)
    assert len(marian(("one", "two"))) == 2
    with pytest.raises(ValueError, match=r"^src_lang='en' must be left out: this model does not know its languages$"):
        marian("one", src_lang="en")


def test_generate_takes_what_the_call_and_the_constructor_give(translator, finished_run):
    several = translator(SENTENCES[:2], num_beams=4, num_return_sequences=3, batch_size=2)
    assert [len(result) for result in several] == [3, 3]
    assert [result[0]["translation_text"] for result in several] == TRANSLATIONS[:2]
    assert len({hypothesis["translation_text"] for hypothesis in several[0]}) == 3
    assert len(translator("one two three", num_beams=2, num_return_sequences=2)) == 2
    short = pipeline("translation", model=str(finished_run / "model"), max_new_tokens=1)
    assert len(short(SENTENCES[0], return_tensors=True)[0]["translation_token_ids"]) == 2
    assert translator(SENTENCES[0], do_sample=True, top_k=1) == [{"translation_text": TRANSLATIONS[0]}]


def test_the_direction_can_be_part_of_the_name_and_objects_can_be_given(finished_run):
    folder = finished_run / "model"
    assert pipeline("translation_en_to_de", model=str(folder))(SENTENCES[3])[0]["translation_text"] == TRANSLATIONS[3]
    with pytest.raises(ValueError, match=r'task="translation_en_to_fr" does not fit this model, which does "transl'):
        pipeline("translation_en_to_fr", model=str(folder))
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    translator = TranslationPipeline(model=model, tokenizer=tokenizer)
    assert translator(SENTENCES[3]) == [{"translation_text": TRANSLATIONS[3]}]


def test_odd_text_survives(translator):
    odd = ["", "   ", "\U0001f600", "one\u2028two\x85\x00", "two\n\tthree", "six " * 50]
    results = translator(odd, batch_size=3)
    assert [set(result) for result in results] == [{"translation_text"}] * len(odd)


def test_a_tokenizer_that_is_not_the_model_s_is_refused(finished_run):
    model = AutoModelForSeq2SeqLM.from_pretrained(finished_run / "model")
    other = train_tokenizer(["one two three four"], 262)
    with pytest.raises(ValueError, match="has a vocabulary of 290 types but a tokenizer of 262: both must be equal"):
        TranslationPipeline(model=model, tokenizer=other)
