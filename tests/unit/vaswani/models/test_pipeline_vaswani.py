from types import SimpleNamespace

import numpy as np
import pytest

from vaswani.models.parsing_vaswani import ParsingPipeline
from vaswani.models.pipeline_vaswani import TranslationPipeline, as_inputs, tokenizer_problem
from vaswani.tokenization import train_tokenizer


class Tokenizer:
    def __init__(self, types: int, eos_token_id: int | None = 0, padding_side: str = "right"):
        self.types, self.eos_token_id, self.padding_side = types, eos_token_id, padding_side

    def __len__(self):
        return self.types


@pytest.mark.parametrize(
    ("kind", "tokenizer", "problem"),
    [
        ("ours", Tokenizer(99), None),
        (
            "ours",
            Tokenizer(99, padding_side="left"),
            "has a tokenizer that pads on the left: padding_side must be 'right', or positions would be others",
        ),
        ("ours", Tokenizer(98), "has a vocabulary of 99 types but a tokenizer of 98: both must be equal"),
        ("ours", Tokenizer(100), "has a vocabulary of 99 types but a tokenizer of 100: both must be equal"),
        ("marian", Tokenizer(98), None),
        ("marian", Tokenizer(100), "has a vocabulary of 99 types but a tokenizer of 100: both must be equal"),
        ("marian", Tokenizer(99, None), None),
        ("marian", None, "has no tokenizer: it must hold a tokenizer.json beside the model"),
        ("marian", Tokenizer(1, None), "has no tokenizer: it must hold a tokenizer.json beside the model"),
    ],
)
def test_a_tokenizer_must_fit_its_model(kind, tokenizer, problem):
    model = SimpleNamespace(config=SimpleNamespace(vocab_size=99))
    if kind == "ours":
        model.decoder_state = None
    assert tokenizer_problem(model, tokenizer) == problem


def test_a_parser_does_not_translate_nor_a_translator_parse(random_model):
    tokenizer = train_tokenizer(["one two three four five six"] * 3, 265)
    model = random_model(vocab_size=265)
    model.config.name_or_path = "it"
    with pytest.raises(ValueError, match=r"^model='it' is for the task 'translation', not 'parse'$"):
        ParsingPipeline(model=model, tokenizer=tokenizer, task="parse")
    model.config.target_lang = "tree"
    with pytest.raises(ValueError, match=r"^model='it' is for the task 'parse', not 'translation'$"):
        TranslationPipeline(model=model, tokenizer=tokenizer, task="translation")


def test_a_pipeline_returns_text_whatever_generate_does(random_model):
    tokenizer = train_tokenizer(["one two three four five six"] * 3, 265)
    model = random_model(vocab_size=265)
    pipe = TranslationPipeline(model=model, tokenizer=tokenizer, task="translation")
    plain = pipe("one two", max_new_tokens=5)
    model.generation_config.return_dict_in_generate = True
    assert pipe("one two", max_new_tokens=5) == plain
    with pytest.raises(ValueError, match="return_dict_in_generate=True must be left out: a pipeline returns text"):
        pipe("one two", return_dict_in_generate=True)
    with pytest.raises(ValueError, match=r"generation_config={'num_beams': 2} must be a GenerationConfig, not a dict"):
        pipe("one two", generation_config={"num_beams": 2})


def test_a_model_in_training_translates_without_dropout_and_stays_in_training(random_model):
    tokenizer = train_tokenizer(["one two three four five six"] * 3, 265)
    model = random_model(vocab_size=265, dropout=0.5)
    pipe = TranslationPipeline(model=model, tokenizer=tokenizer, max_new_tokens=9)
    expected = pipe("one two")
    assert not model.training
    model.train()
    model.get_encoder().eval()  # a part that is not trained
    before = {name: module.training for name, module in model.named_modules()}
    assert [pipe("one two") for _ in range(3)] == [expected] * 3
    assert {name: module.training for name, module in model.named_modules()} == before


@pytest.mark.parametrize("given", [{}, {"clean_up_tokenization_spaces": True}], ids=str)
def test_spaces_are_cleaned_up_where_that_is_asked_for(given, random_model, monkeypatch):
    tokenizer, seen = train_tokenizer(["one two three four five six"] * 3, 265), []
    pipe = TranslationPipeline(model=random_model(vocab_size=265), tokenizer=tokenizer, max_new_tokens=2, **given)
    monkeypatch.setattr(tokenizer, "batch_decode", lambda ids, **settings: seen.append(settings) or ["eins"])
    assert pipe("one") == [{"translation_text": "eins"}]
    assert seen == [{"skip_special_tokens": True, "clean_up_tokenization_spaces": bool(given)}]


def test_text_is_returned_where_it_is_asked_for_as_in_transformers_4(random_model):
    tokenizer = train_tokenizer(["one two three four five six"] * 3, 265)
    pipe = TranslationPipeline(model=random_model(vocab_size=265), tokenizer=tokenizer, max_new_tokens=2)
    assert pipe("one", return_text=True) == pipe("one")
    assert pipe("one", return_text=False, return_tensors=True)[0].keys() == {"translation_token_ids"}
    with pytest.raises(ValueError, match="return_text=False must be True: return_tensors=None"):
        pipe("one", return_text=False)


def test_a_long_sentence_is_cut_off_where_truncation_is_asked_for(random_model):
    tokenizer, seen = train_tokenizer(["one two three four five six"] * 3, 265), []
    tokenizer.model_max_length = 3
    model = random_model(vocab_size=265)
    pipe = TranslationPipeline(model=model, tokenizer=tokenizer, task="translation", max_new_tokens=2)
    model.generate = lambda **given: seen.append(given["input_ids"].shape[1]) or type(model).generate(model, **given)
    for truncation in ({}, {"truncation": True}):
        pipe("one two three four", **truncation)
    assert seen[0] > seen[1] == 3
    tokenizer.model_max_length = 10**30  # transformers' way to say that there is none
    assert pipe("one two three four", truncation=True) == pipe("one two three four")
    model = random_model(vocab_size=265, position_embedding_type="learned", max_position_embeddings=4)
    pipe = TranslationPipeline(model=model, tokenizer=tokenizer, task="translation", max_new_tokens=2)
    for tokenizer.model_max_length in (10**30, 6):  # the smaller of both limits counts
        assert pipe("one two three four five six", truncation=True)
    with pytest.raises(ValueError, match="longer than max_position_embeddings=4"):
        pipe("one two three four five six")


def test_all_that_yields_strings_is_taken():
    assert as_inputs("one") == "one"
    for strings in (["one", "two"], ("one", "two"), np.array(["one", "two"])):
        assert as_inputs(strings) == ["one", "two"]
    assert list(as_inputs(iter(["one", "two"]))) == ["one", "two"]


@pytest.mark.parametrize("columns", [{"en": ["one"]}, np.array([["one"]])], ids=["mapping", "matrix"])
def test_of_columns_one_must_be_chosen(columns):
    with pytest.raises(ValueError, match=r"has columns: choose one, such as inputs\['en'\]"):
        as_inputs(columns)
