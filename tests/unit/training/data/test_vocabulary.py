import pytest
from datasets import Dataset
from tokenizers import Tokenizer, models, processors
from transformers import PreTrainedTokenizerFast

from training.data import vocabulary
from training.data.vocabulary import count_types, load_tokenizer
from training.settings import ModelSettings
from vaswani.errors import UserError
from vaswani.tokenization import train_tokenizer, wrap_tokenizer


pytestmark = pytest.mark.usefixtures("cache")
TEXT = Dataset.from_dict({"source": ["ab ab abc"], "target": ["cd cd cde"]})
TREES = Dataset.from_dict({"source": ["ab cd", "ab ab ef"], "target": ["(S (NN) (VB) )S", "(S (VB) (NN) (RB) )S"]})


def test_a_cached_tokenizer_is_the_trained_one(tmp_path):
    saved = []
    for name in ("trained", "cached"):
        load_tokenizer(ModelSettings(vocab_size=260), TEXT).save_pretrained(tmp_path / name)
        saved.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    train_tokenizer(["ab ab abc", "cd cd cde"], 260).save_pretrained(tmp_path / "directly")
    saved.append({path.name: path.read_bytes() for path in (tmp_path / "directly").iterdir()})
    assert saved[0] == saved[1] == saved[2]


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (None, "tokenizer_name='.*named' has no tokenizer that can be loaded: .*named"),
        (Tokenizer(models.WordLevel({"a": 0})), "must have an end-of-sentence and a padding token"),
    ],
)
def test_unfit_named_tokenizers_are_refused(tmp_path, tokenizer, message):
    if tokenizer is not None:
        PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path / "named")
    with pytest.raises(UserError, match=message):
        load_tokenizer(ModelSettings(tokenizer_name=str(tmp_path / "named")), TEXT)


def test_a_named_tokenizer_that_does_not_end_sentences_is_refused(tmp_path, tokenizer):
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.post_processor = processors.Sequence([])
    wrap_tokenizer(backend).save_pretrained(tmp_path / "named")
    with pytest.raises(UserError, match=r"tokenizer_name='.*named' must put '</s>' behind a sentence, and does not"):
        load_tokenizer(ModelSettings(tokenizer_name=str(tmp_path / "named")), TEXT)


def test_one_that_puts_a_language_behind_the_end_is_taken(tmp_path, tokenizer):
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s> <pad>",
        special_tokens=[(token, tokenizer.convert_tokens_to_ids(token)) for token in ("</s>", "<pad>")],
    )
    wrap_tokenizer(backend).save_pretrained(tmp_path / "named")
    assert load_tokenizer(ModelSettings(tokenizer_name=str(tmp_path / "named"), vocab_size=len(tokenizer)), TEXT)


def test_a_named_tokenizer_is_used(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path / "named")
    named, types = {"tokenizer_name": str(tmp_path / "named")}, len(tokenizer)
    for given in (None, types):
        assert count_types(ModelSettings(**named, vocab_size=given)) == types
    with pytest.raises(
        UserError, match=rf"vocab_size=5 contradicts tokenizer_name='.*named', which has {types} types"
    ):
        load_tokenizer(ModelSettings(**named, vocab_size=5), TEXT)
    assert load_tokenizer(ModelSettings(**named), TEXT)("ab abc").input_ids == tokenizer("ab abc").input_ids


def test_the_tokenizer_of_the_model_to_start_from_is_used(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path / "base")
    loaded = load_tokenizer(ModelSettings(model_name_or_path=str(tmp_path / "base")), TEXT)
    assert loaded("ab ab abc").input_ids == tokenizer("ab ab abc").input_ids
    loaded.save_pretrained(tmp_path / "again")
    for path in (tmp_path / "base").iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()


def test_a_tokenizer_that_is_named_comes_before_that_of_the_model(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path / "named")
    given = ModelSettings(model_name_or_path=str(tmp_path / "checkpoint"), tokenizer_name=str(tmp_path / "named"))
    assert load_tokenizer(given, TEXT)("ab abc").input_ids == tokenizer("ab abc").input_ids


def test_text_alone_and_text_with_trees_have_tokenizers_of_their_own():
    sizes_and_trees = [(259, False), (260, False), (265, False), (265, True)]
    made = [load_tokenizer(ModelSettings(vocab_size=size), TREES, trees) for size, trees in sizes_and_trees]
    assert [len(tokenizer) for tokenizer in made] == [259, 260, 265, 265]
    assert ["(NN)" in tokenizer.get_vocab() for tokenizer in made] == [False, False, False, True]


def test_a_parsers_words_are_divided_by_the_sources_alone():
    trees = Dataset.from_dict({"source": ["xy xy z"], "target": ["(xzxz (xzxz) (xzxz) (xzxz) )xzxz"]})
    tokenizer = load_tokenizer(ModelSettings(vocab_size=263), trees, has_trees=True)
    assert len(tokenizer.tokenize("xy")) < len(tokenizer.tokenize("xz"))


def test_a_vocabulary_that_the_text_does_not_support_is_refused():
    with pytest.raises(UserError, match="vocab_size=37000 is larger than the training text supports"):
        load_tokenizer(ModelSettings(), TEXT)


def test_a_parsers_tokenizer_knows_the_parts_of_speech_of_words(tmp_path, monkeypatch):
    expected = {"ab": "NN VB", "cd": "VB", "ef": "RB"}
    tokenizer = load_tokenizer(ModelSettings(vocab_size=265), TREES, has_trees=True)
    assert tokenizer.init_kwargs["parts_of_speech"] == expected
    with monkeypatch.context() as patch:
        patch.setattr(vocabulary, "Counter", lambda: pytest.fail("counted twice"))
        again = load_tokenizer(ModelSettings(vocab_size=265), TREES, has_trees=True)
    assert again.init_kwargs["parts_of_speech"] == expected
    tokenizer.save_pretrained(tmp_path / "model")
    others = Dataset.from_dict({"source": ["ab gh"], "target": ["(S (RB) (NN) )S"]})
    other = load_tokenizer(ModelSettings(tokenizer_name=str(tmp_path / "model")), others, has_trees=True)
    assert other.init_kwargs["parts_of_speech"] == expected | {"ab": "NN RB VB", "gh": "NN"}


def test_a_tokenizer_of_translations_is_no_parsers(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path / "named")
    for field in ("tokenizer_name", "model_name_or_path"):
        given = ModelSettings(**{field: str(tmp_path / "named")})
        with pytest.raises(UserError, match=f"{field}='.*named': the tokenizer has no symbols of trees"):
            load_tokenizer(given, TREES, has_trees=True)


def test_only_frequent_words_have_their_parts_of_speech_kept(monkeypatch):
    monkeypatch.setattr(vocabulary, "DICTIONARY_WORDS", 1)
    tokenizer = load_tokenizer(ModelSettings(vocab_size=265), TREES, has_trees=True)
    assert tokenizer.init_kwargs["parts_of_speech"] == {"ab": "NN VB"}


def test_a_tree_without_a_part_of_speech_for_each_word_is_refused():
    trees = Dataset.from_dict({"source": ["a b"], "target": ["(S (NN) )S"]})
    with pytest.raises(
        UserError, match=r"the tree '\(S \(NN\) \)S' must have a part of speech for each word of 'a b'"
    ):
        load_tokenizer(ModelSettings(vocab_size=262), trees, has_trees=True)
