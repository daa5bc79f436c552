"""The generated corpus: one translation per sentence, splits that share nothing."""

import random
from pathlib import Path

import pytest

from training.data.grammar import corpus as grammar
from training.data.grammar import lexicon
from training.data.grammar.corpus import generate_pairs, write_corpus
from training.data.grammar.sentences import Clause, Sentence


def test_english_to_german_is_a_function_and_every_entry_is_used():
    rng, german_of = random.Random(1), {}
    for _ in range(200_000):
        sentence = grammar.draw_sentence(rng)
        english, german = sentence.in_english(), sentence.in_german()
        assert german_of.setdefault(english, german) == german, english
    english, german = f" {' '.join(german_of)} ".lower(), " ".join(german_of.values())
    entries = [*lexicon.NOUNS, *lexicon.VERBS, *lexicon.SAYING, *lexicon.ADJECTIVES, *lexicon.ADVERBS]
    entries += [*lexicon.PRONOUNS, *lexicon.NAMES]
    assert not [form for entry in entries for form in entry.english.split("/") if f" {form.lower()}" not in english]
    assert not [noun for noun in lexicon.NOUNS if not all(form in german for form in noun.german.split("/"))]
    assert not [
        number
        for number in range(2, lexicon.LARGEST_NUMBER + 1)
        if f"{lexicon.number_words(number)[1]} " not in german
    ]


def test_pairs_are_distinct_short_and_deterministic():
    pairs = generate_pairs(3000, seed=5)
    assert len({english for english, _ in pairs}) == 3000
    assert all(4 <= len(sentence.split()) <= 14 for pair in pairs for sentence in pair)
    assert generate_pairs(1000, seed=5) == pairs[:1000] != generate_pairs(1000, seed=6)


def test_counts_the_grammar_cannot_yield_are_refused(monkeypatch, tmp_path):
    with pytest.raises(ValueError, match=r"^count must be at least 1, not 0\.$"):
        generate_pairs(0, seed=1)
    with pytest.raises(ValueError, match="at least 1, not 5, 0 and 5"):
        write_corpus(tmp_path, 5, 0, 5)
    see, he = lexicon.VERBS[0], lexicon.PRONOUNS[2]

    def draw_one_of_six(rng: random.Random) -> Sentence:
        return Sentence(Clause(rng.choice(lexicon.NAMES), see, (he,), time=lexicon.ADVERBS[0]))

    monkeypatch.setattr(grammar, "draw_sentence", draw_one_of_six)
    assert len(generate_pairs(6, seed=1)) == 6
    with pytest.raises(ValueError, match="yields only about 6 sentences"):
        generate_pairs(7, seed=1)


def test_splits_share_nothing_and_are_written_once(tmp_path: Path):
    assert write_corpus(str(tmp_path), train=300, validation=40, test=50) == tmp_path
    rows = {path.name: path.read_text(encoding="utf-8").splitlines() for path in tmp_path.glob("*.tsv")}
    sizes = {"train.tsv": 301, "validation.tsv": 41, "test.tsv": 51}
    assert {name: len(lines) for name, lines in rows.items()} == sizes
    assert all(lines[0] == "en\tde" and all(line.count("\t") == 1 for line in lines) for lines in rows.values())
    assert len({line.split("\t")[0] for lines in rows.values() for line in lines[1:]}) == 390
    assert {path.name for path in tmp_path.iterdir()} == {"corpus.json", *rows}

    (tmp_path / "train.tsv").write_text("kept")
    write_corpus(tmp_path, train=300, validation=40, test=50)
    assert (tmp_path / "train.tsv").read_text() == "kept"
    write_corpus(tmp_path, train=301, validation=40, test=50)
    assert len((tmp_path / "train.tsv").read_text(encoding="utf-8").splitlines()) == 302
    assert (tmp_path / "test.tsv").read_text(encoding="utf-8").splitlines() == rows["test.tsv"]
    write_corpus(tmp_path, train=301, validation=40, test=50, seed=5)
    assert (tmp_path / "test.tsv").read_text(encoding="utf-8").splitlines() != rows["test.tsv"]
    (tmp_path / "train.tsv").unlink()
    write_corpus(tmp_path, train=301, validation=40, test=50, seed=5)
    assert len((tmp_path / "train.tsv").read_text(encoding="utf-8").splitlines()) == 302


def test_an_interrupted_run_leaves_no_half_file(tmp_path: Path, monkeypatch):
    def interrupt(*paths):
        raise KeyboardInterrupt

    write_corpus(tmp_path, train=30, validation=4, test=5)
    monkeypatch.setattr("os.replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_corpus(tmp_path, train=31, validation=4, test=5)
    assert {path.name for path in tmp_path.iterdir()} == {"train.tsv", "validation.tsv", "test.tsv"}
    assert len((tmp_path / "train.tsv").read_text(encoding="utf-8").splitlines()) == 31
