"""What a system translates: decoded once, and scored by length."""

import json

import pytest
import sacrebleu

from training.tables.systems import translations as module
from training.tables.systems.translations import Bucket, bleu_of, buckets, decode
from vaswani.scoring.references import EvaluationSet


def test_a_text_is_translated_once_and_counted(make_plan, monkeypatch):
    plan, loaded = make_plan(learning_rate_factors=[1.0]), []
    plan.choose()
    run = plan.plan_runs()[0]
    run.directory.mkdir()

    class Tokenizer:
        def __call__(self, sentences, verbose):
            return type("Encoded", (), {"input_ids": [[*sentence.split(), "</s>"] for sentence in sentences]})

    def load(name):
        loaded.append(name)
        return None, Tokenizer()

    monkeypatch.setattr(module, "load", load)
    monkeypatch.setattr(module, "translate_all", lambda model, tokenizer, sources: [text.upper() for text in sources])
    text = EvaluationSet("test", "test", ["a b", "c"], ["A", "C"])
    first, second = decode(run, text), decode(run, text)
    assert first == second
    assert (first.translations, first.tokens) == (["A B", "C"], 5)
    assert loaded == [str(run.directory / "model")]
    assert json.loads((run.directory / "decoding-test.json").read_text())["tokens"] == 5


def test_buckets_hold_every_sentence_once_and_the_longest_by_themselves():
    sources = [" ".join(["word"] * length) for length in [*range(1, 21), 20, 20, 40]]
    parts = buckets(sources)
    assert sorted(index for part in parts for index in part.sentences) == list(range(23))
    for part in parts:
        assert all(part.first <= len(sources[index].split()) <= part.last for index in part.sentences)
    assert (parts[0].name, parts[-1].last) == ("1-5", 40)
    assert [part.name for part in parts[-2:]] == ["19-20", "21-40"]  # sentences of one length stay together
    assert buckets(["one two"]) == [Bucket(2, 2, [0])]
    assert Bucket(2, 2, [0]).name == "2"


def test_the_score_of_a_bucket_is_that_of_its_sentences_alone():
    part = Bucket(1, 5, [0, 2])
    hypotheses = ["the cat sat on the mat", "nothing", "a dog barks at the moon"]
    references = ["the cat sat on a mat", "something else", "a dog barks at the moon"]
    alone = sacrebleu.corpus_bleu([hypotheses[0], hypotheses[2]], [[references[0], references[2]]]).score
    assert bleu_of(part, hypotheses, references) == pytest.approx(alone)
