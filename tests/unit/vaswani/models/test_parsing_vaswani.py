import pytest
import transformers
from nltk.tokenize import TreebankWordTokenizer
from small_parser import save_parser

from training.settings import ROOT
from vaswani import ParsingPipeline
from vaswani.models.parsing_vaswani import divide, read_sentence
from vaswani.parsing.treebank import read_trees
from vaswani.text.hub import load_split


NEWSTEST = ROOT.parent / "shared" / "data" / "wmt14"


@pytest.fixture(scope="module")
def parser(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parser")
    save_parser(folder)
    return transformers.pipeline("parse", model=str(folder))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The dog sleeps.", "The dog sleeps ."),
        ("It isn't (very) new, he said.", "It is n't -LRB- very -RRB- new , he said ."),
        ('"Go," she cried: "I\'ll wait!"', "`` Go , '' she cried : `` I 'll wait ! ''"),
        ("Mr. Vinken paid $3,000 (or 5%) at 10:30.", "Mr. Vinken paid $ 3,000 -LRB- or 5 % -RRB- at 10:30 ."),
        ("The cats' tea -- cold... We cannot.", "The cats ' tea -- cold ... We can not ."),
        ("They're John's & mine; aren't they?", "They 're John 's & mine ; are n't they ?"),
        ("It is n't `` new '' .", "It is n't `` new '' ."),  # divided already
        ("It isn\u2019t John\u2019s.", "It is n't John 's ."),
        ("\u201cGo,\u201d he said: \u201cit \u2018sleeps\u2019.\u201d", "`` Go , '' he said : `` it ` sleeps ' . ''"),
        ("3/4 of it, or 3\\/4", "3\\/4 of it , or 3\\/4"),
        ("She left (early.)", "She left -LRB- early . -RRB-"),
        ("  ", ""),
    ],
)
def test_text_is_divided_as_in_the_treebank(text, words):
    assert divide(text) == words.split()


@pytest.mark.skipif(not NEWSTEST.exists(), reason="the shared data sets are not beside this checkout")
def test_text_is_divided_as_nltk_divides_it():
    nltk, brackets = TreebankWordTokenizer(), {"(": "-LRB-", ")": "-RRB-"}
    texts = load_split(str(NEWSTEST), "de-en", "test", ("en", "de"))["source"]
    assert len(texts) > 2000
    for text in texts:
        if set(text).isdisjoint("\u2018\u2019\u201c\u201d\u201e"):  # NLTK leaves these as they are
            words = [brackets.get(word, word) for word in nltk.tokenize(text)]
            assert divide(text) == [word.replace("/", "\\/") for word in words]


def test_a_sentence_is_text_words_or_tagged_words():
    assert read_sentence("a dog.") == (["a", "dog", "."], None)
    assert read_sentence(["a", "dog"]) == (["a", "dog"], None)
    assert read_sentence([("a", "DT"), ["dog", "NN"]]) == (["a", "dog"], ["DT", "NN"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "a sentence must hold a word, but '' has none"),
        (" \n", r"a sentence must hold a word, but ' \\n' has none"),
        ([], "a sentence must be text, words, or pairs"),
        (3, "a sentence must be text, words, or pairs .*, not 3"),
        ([("a", "DT"), "b"], "a sentence must be text, words, or pairs"),
        ([("a", 3)], "a sentence must be text, words, or pairs"),
        (["a", None], r"a sentence must be text, words, or pairs .*, not \['a', None\]"),
        (["a", "b c"], "the word 'b c' must have no white space and no brackets"),
        (["("], r"the word '\(' must have .* no brackets, which the treebank writes as -LRB- and -RRB-"),
        ([""], "the word '' must have"),
        ([("dog", "")], "the part of speech '' must have"),
        ([("dog", "N)N")], r"the part of speech 'N\)N' must have"),
    ],
)
def test_what_is_no_sentence_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        read_sentence(given)


def words_of(result: dict, tmp_path) -> list[str]:
    path = tmp_path / "tree"
    path.write_text(result["tree"] + "\n")
    [tree] = read_trees(path)
    return [word for word, _ in tree.leaves()]


@pytest.mark.parametrize("constrained", [True, False])
def test_every_form_of_a_sentence_gives_a_tree_over_its_words(parser, constrained, tmp_path):
    texts = ["the dog sleeps.", "tea (cold), we drink often."]
    [alone] = parser(texts[0], constrained=constrained)
    together = parser(texts, batch_size=2, constrained=constrained)
    assert together[0] == alone
    assert [words_of(result, tmp_path) for result in together] == [divide(text) for text in texts]
    assert parser([divide(text) for text in texts], batch_size=2, constrained=constrained) == together
    assert all(result["repairs"] == 0 for result in together) == constrained


@pytest.mark.parametrize("constrained", [True, False])
def test_tagged_words_keep_their_tags(parser, constrained):
    pairs = [("the", "RB"), ("dog", "VBP")]
    [result] = parser(pairs, constrained=constrained)
    assert "(RB the)" in result["tree"]
    assert "(VBP dog)" in result["tree"]
    assert parser([pairs, ["tea"]], batch_size=2, constrained=constrained)[0] == result


def test_processors_of_ones_own_are_called_too(parser):
    [opened] = parser("the dog")
    label = opened["tree"].split()[0]
    ids = parser.tokenizer.convert_tokens_to_ids([label])
    [other] = parser("the dog", logits_processor=[transformers.SuppressTokensLogitsProcessor(ids)])
    assert label not in other["tree"].split()
    assert other["repairs"] == 0


def test_several_trees_of_a_sentence(parser):
    results = parser(["the dog", "tea"], num_return_sequences=2, num_beams=3, batch_size=2)
    assert [len(trees) for trees in results] == [2, 2]
    assert results[0][0] != results[0][1]


def test_the_pipeline_returns_trees_whatever_generate_does(parser, monkeypatch):
    plain = parser("the dog")
    monkeypatch.setattr(parser.model.generation_config, "return_dict_in_generate", True)
    assert parser("the dog") == plain
    with pytest.raises(ValueError, match="return_dict_in_generate=True must be left out: a pipeline returns text"):
        parser("the dog", return_dict_in_generate=True)


@pytest.mark.parametrize("given", [{"src_lang": "en"}, {"truncation": True}, {"return_text": False}], ids=str)
def test_what_only_a_translation_has_is_refused_by_name(given, parser):
    [(name, value)] = given.items()
    with pytest.raises(ValueError, match=f"^{name}={value!r} must be left out: it is for the task 'translation'$"):
        parser("the dog", **given)


def test_bad_sentences_are_refused_by_the_pipeline_too(parser):
    with pytest.raises(ValueError, match="the part of speech 'XY' of 'dog' must be one that the model knows"):
        parser([("dog", "XY")])
    with pytest.raises(ValueError, match="a sentence must hold a word"):
        parser("")


def test_a_folder_names_the_pipeline_of_its_model(parser):
    assert isinstance(parser, ParsingPipeline)
    pipelines = parser.model.config.to_dict()["custom_pipelines"]
    assert {task: pipeline["impl"] for task, pipeline in pipelines.items()} == {
        "parse": "parsing_vaswani.ParsingPipeline"
    }
