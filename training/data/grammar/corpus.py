"""A small English-German grammar that writes a training corpus by itself, offline and in seconds.

A sentence is drawn as a structure that belongs to neither language and is then realized once in each. German needs
gender, case, adjective endings, verb-second and verb-final order, separable verbs, modals, the perfect, negation,
questions and numbers in words, so that no word-for-word table can translate it. English to German is a function: no
English sentence has two translations. The grammar does not parse, has no style, and leaves out words that would break
that promise ('you', 'it', 'read').
"""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from training.data.grammar import lexicon
from training.data.grammar.lexicon import Noun, Word, adjectives, nouns, urn
from training.data.grammar.sentences import Clause, Nominal, NounPhrase, Sentence
from vaswani.errors import UserError
from vaswani.files import write_text


GRAMMAR_VERSION = 1  # raise it when the same arguments would give another corpus
LENGTHS = range(4, 15)  # words in a sentence, on either side
PATIENCE = 10_000  # draws in a row without a new sentence before the grammar counts as exhausted


def referent(phrase: Nominal) -> Noun | str:
    """Return whom a phrase refers to, a noun or a person: a clause that had it twice would need a reflexive."""
    if isinstance(phrase, NounPhrase):
        return phrase.noun
    return "speaker" if phrase in lexicon.PRONOUNS[:2] else phrase.english


def draw_noun_phrase(rng: random.Random, kinds: str, articles: Sequence[Word] = lexicon.ARTICLES) -> NounPhrase:
    """Draw a noun with determiner, number and adjectives."""
    noun, determiner, plural = rng.choice(nouns(kinds)), rng.choice(articles), rng.random() < 0.28
    if noun in lexicon.NOUNS[:2] and "known" in determiner.tags and determiner is not lexicon.THE:
        determiner = lexicon.THIS  # 'my woman' would be 'my wife' in German
    count = 0
    if plural and determiner not in (lexicon.NO, lexicon.NOT_A) and rng.random() < 0.35:
        count = rng.randint(2, 12) if rng.random() < 0.5 else rng.randint(13, lexicon.LARGEST_NUMBER)
    described: tuple[Word, ...] = ()
    if rng.random() < 0.32:
        described = (rng.choice(adjectives(noun.kind)),)
        colors = adjectives(noun.kind, "color")
        if colors and described[0] not in colors and rng.random() < 0.12:
            described += (rng.choice(colors),)
    return NounPhrase(noun, determiner, plural, described, count)


def draw_nominal(rng: random.Random, kinds: str, articles: Sequence[Word], other: Nominal | None = None) -> Nominal:
    """Draw a noun phrase, or a pronoun or name where persons are allowed, but not the other phrase again."""
    while True:
        if "P" in kinds and rng.random() < 0.4:
            phrase: Nominal = rng.choice(lexicon.PEOPLE)
        else:
            phrase = draw_noun_phrase(rng, kinds, articles)
        if other is None or referent(phrase) != referent(other):
            return phrase


def draw_predicate(rng: random.Random, clause: Clause) -> Clause:
    """Add objects and place to a clause that has its subject and verb."""
    verb, objects, place = clause.verb, (), None
    if len(verb.cases) == 2:
        objects = (draw_nominal(rng, "P", lexicon.KNOWN_ARTICLES, clause.subject),)
    if verb.cases:
        articles = lexicon.KNOWN_ARTICLES if clause.negated else lexicon.ARTICLES
        if clause.negated and not verb.preposition and rng.random() < 0.5:
            articles = (lexicon.NOT_A,)
        patient = draw_nominal(rng, verb.objects, articles, clause.subject)
        if objects and patient.determiner is lexicon.A:
            patient = replace(patient, plural=False, count=0)  # 'gave her eggs' could be about her eggs
        objects += (patient,)
    # 'nicht' after an object and before a place would deny the place alone.
    placeable = verb.place == "at" and (not clause.negated or not verb.cases or verb.preposition)
    if verb.place == "to" or (placeable and rng.random() < 0.3):
        place = replace(draw_noun_phrase(rng, "L"), plural=False, count=0)
    preposition = lexicon.INTO if verb.place == "to" else rng.choice(lexicon.PREPOSITIONS)
    return replace(clause, objects=objects, place=place, preposition=preposition)


def draw_time(rng: random.Random, clause: Clause) -> Word | None:
    """Draw an adverb that suits the clause, if any does."""
    if clause.predicate and "mood" not in clause.predicate.tags:
        return None
    tense = "past" if clause.past else "future" if clause.modal is lexicon.WILL else "present"
    # 'never' and 'must' would make a denial, and 'not ... often' is not 'often ... not'.
    denied = clause.negated or clause.modal is lexicon.MUST or clause.subject.determiner is lexicon.NO
    return rng.choice(
        [time for time in lexicon.ADVERBS if tense in time.tags and (not denied or "deniable" in time.tags)]
    )


def draw_clause(rng: random.Random, past: bool | None = None, *, timed: float, question: bool = False) -> Clause:
    """Draw a clause, with a time at this rate; the subject of a question or a denial is always a known one."""
    past = rng.random() < 0.38 if past is None else past
    negated = rng.random() < 0.18
    modal = None if past else rng.choice(lexicon.MODALS)
    if modal is lexicon.MUST and negated:
        modal = None if question else lexicon.MUST_NOT
    articles = lexicon.KNOWN_ARTICLES if negated or question or modal is lexicon.MUST else lexicon.SUBJECT_ARTICLES
    if rng.random() < 0.1:
        kinds, group = ("PA", "mood") if question or rng.random() < 0.6 else ("TOFL", "")
        subject = draw_nominal(rng, kinds, articles)
        kind = "P"
        if isinstance(subject, NounPhrase):
            # Its adjectives might repeat or contradict the predicate.
            subject, kind = replace(subject, adjectives=()), subject.noun.kind
        predicate = rng.choice(adjectives(kind, group))
        clause = Clause(subject, lexicon.BE, (), past, negated, predicate=predicate)
    else:
        verb = rng.choice(lexicon.VERBS)
        subject = draw_nominal(rng, verb.subjects, articles)
        clause = draw_predicate(rng, Clause(subject, verb, (), past, negated, modal))
    return replace(clause, time=draw_time(rng, clause)) if rng.random() < timed else clause


def draw_simple(rng: random.Random) -> Sentence:
    """Draw a main clause that its subject or a time opens."""
    clause = draw_clause(rng, timed=0.6)
    if clause.time and "middle" not in clause.time.tags and rng.random() < 0.65:
        return Sentence(replace(clause, time=None), opener=clause.time)
    return Sentence(clause)


def draw_question(rng: random.Random) -> Sentence:
    """Draw a question, with or without a question word."""
    word = rng.choice(lexicon.QUESTION_WORDS)
    clause = draw_clause(rng, timed=0 if word is lexicon.WHEN else 0.2, question=True)
    while word is lexicon.WHERE and clause.verb.place != "at":
        clause = draw_clause(rng, timed=0.2, question=True)
    if word is None and rng.random() < 0.25:
        return Sentence(replace(clause, subject=lexicon.WHO), question=True)
    return Sentence(replace(clause, place=None) if word is lexicon.WHERE else clause, word, question=True)


def draw_joined(rng: random.Random) -> Sentence:
    """Draw two clauses and their conjunction."""
    conjunction = rng.choice(lexicon.CONJUNCTIONS)
    main = draw_clause(rng, past=False if conjunction is lexicon.IF else None, timed=0.1)
    if conjunction is lexicon.THAT:
        main = Clause(
            draw_nominal(rng, "P", lexicon.KNOWN_ARTICLES), rng.choice(lexicon.SAYING), (), main.past, main.negated
        )
    past = main.past or ("free" in conjunction.tags and rng.random() < 0.3)
    second = draw_clause(rng, past, timed=0.15)
    if "free" not in conjunction.tags and second.modal is lexicon.WILL:
        second = replace(second, modal=None)
    first = conjunction is not lexicon.THAT and "main" not in conjunction.tags and rng.random() < 0.4
    if conjunction is lexicon.WHENEVER and past:
        conjunction = lexicon.ONCE
    return Sentence(main, conjunction=conjunction, second=second, second_first=first)


SENTENCES = urn({draw_simple: 55, draw_question: 25, draw_joined: 20})


def draw_sentence(rng: random.Random) -> Sentence:
    """Draw a sentence of any form."""
    return rng.choice(SENTENCES)(rng)


def generate_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Generate sentence pairs; the first pairs of a longer list are those of a shorter one.

    Parameters
    ----------
    count : int
        Number of pairs, at least 1.
    seed : int
        Seed of the only random generator.

    Returns
    -------
    list[tuple[str, str]]
        English and German sentences, no English sentence twice.

    Raises
    ------
    ValueError
        If count is less than 1 or more than the grammar yields.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}.")
    rng, pairs, idle = random.Random(seed), {}, 0
    while len(pairs) < count:
        sentence = draw_sentence(rng)
        english, german = sentence.in_english(), sentence.in_german()
        fits = len(english.split()) in LENGTHS and len(german.split()) in LENGTHS
        idle = 0 if fits and english not in pairs else idle + 1
        if idle > PATIENCE:
            raise ValueError(f"count is {count}, but the grammar yields only about {len(pairs)} sentences.")
        if fits:
            pairs[english] = german
    return list(pairs.items())


def write_corpus(
    directory: str | Path, train: int = 200_000, validation: int = 500, test: int = 500, seed: int = 2017
) -> Path:
    """Write train.tsv, validation.tsv and test.tsv, unless they are there with the same arguments.

    Parameters
    ----------
    directory : str or Path
        Where the files go; it is created if it is missing.
    train, validation, test : int
        Numbers of pairs, at least 1 each. No English sentence is in two files, and the test and validation files do
        not depend on the size of the training file.
    seed : int
        Seed of the generator.

    Returns
    -------
    Path
        The directory.

    Raises
    ------
    ValueError
        If a number is less than 1 or their sum is more than the grammar yields.
    UserError
        If the directory cannot be written to, as on a full disk.
    """
    directory = Path(directory)
    sizes = {"test": test, "validation": validation, "train": train}
    if min(sizes.values()) < 1:
        raise ValueError(f"train, validation and test must be at least 1, not {train}, {validation} and {test}.")
    record = directory / "corpus.json"
    arguments = json.dumps({"grammar_version": GRAMMAR_VERSION, "seed": seed, **sizes}, indent=2) + "\n"
    files = {directory / f"{split}.tsv": size for split, size in sizes.items()}
    if all(path.is_file() for path in (record, *files)) and record.read_text(encoding="utf-8") == arguments:
        return directory
    pairs = iter(generate_pairs(sum(sizes.values()), seed))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        record.unlink(missing_ok=True)  # written again last, so that it never vouches for files of another run
        for path, size in files.items():
            rows = [("en", "de"), *islice(pairs, size)]
            write_text(path, "".join(f"{english}\t{german}\n" for english, german in rows))
        write_text(record, arguments)
    except OSError as error:
        raise UserError(f"the corpus cannot be written to {directory}: {error}") from error
    return directory
