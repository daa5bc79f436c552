import pytest
import sacrebleu

from vaswani.scoring.lengths import Bucket, bleu_of, buckets


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


def test_buckets_are_fifths_and_the_longest_twentieth():
    parts = buckets([" ".join(["word"] * length) for length in range(1, 101)])
    assert [part.name for part in parts] == ["1-20", "21-40", "41-60", "61-80", "81-95", "96-100"]


def test_the_score_of_a_bucket_is_that_of_its_sentences_alone():
    part = Bucket(1, 5, [0, 2])
    hypotheses = ["the cat sat on the mat", "nothing", "a dog barks at the moon"]
    references = ["the cat sat on a mat", "something else", "a dog barks at the moon"]
    alone = sacrebleu.corpus_bleu([hypotheses[0], hypotheses[2]], [[references[0], references[2]]]).score
    assert bleu_of(part, hypotheses, references) == pytest.approx(alone)


def test_it_is_of_the_language_or_of_the_tokens():
    part = Bucket(1, 1, [0])
    assert bleu_of(part, ["我今天喜欢读书。"], ["我今天喜欢写字。"]) == 0
    assert bleu_of(part, ["我今天喜欢读书。"], ["我今天喜欢写字。"], "zh") > 40
    sides = ["a b c d e-f, g"], ["a b c d e-f, h"]
    assert bleu_of(part, *sides, tokenized=True) < bleu_of(part, *sides)
