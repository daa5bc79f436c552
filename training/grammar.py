"""A small English-German grammar that writes its own training corpus, without any network or data set.

Every sentence starts as a language-neutral structure, drawn at random, that is realized once in English and once in
German. The German side needs gender, case, number and adjective endings, verb-second and verb-final word order,
separable verbs, modals, the perfect tense, negation, questions, numbers in words and relative clauses. English to
German is a function: an English sentence never has two translations. The grammar does not parse, does not aim at
style, and leaves out whatever would break that promise, such as 'you', 'it' and 'read'.
"""

import argparse
import json
import os
import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypeVar

Choice = TypeVar("Choice")

GRAMMAR_VERSION = 1  # raise it whenever the same arguments would give another corpus
FORMAT_HEADER = ("en", "de")
LENGTHS = range(4, 19)  # words in a sentence, on either side
PATIENCE = 10_000  # consecutive draws without a new sentence before the grammar counts as exhausted

NOMINATIVE, ACCUSATIVE, DATIVE = range(3)
FIRST, THIRD, PLURAL = range(3)  # agreement: 'I', any other singular, any plural


@dataclass(frozen=True)
class Noun:
    """Both languages' forms; `kind` is made of p(erson) a(nimal) t(hing) o(pens) f(ood) l(ocation)."""

    english: str
    english_plural: str
    german: str
    german_plural: str
    gender: str
    kind: str
    oblique: str = ""  # accusative and dative singular of weak nouns

    def german_form(self, case: int, plural: bool) -> str:
        """Decline the noun; only weak nouns and the dative plural differ from the dictionary form."""
        if plural:
            return self.german_plural + ("n" if case == DATIVE and self.german_plural[-1] not in "ns" else "")
        return self.oblique if self.oblique and case != NOMINATIVE else self.german


@dataclass(frozen=True)
class Verb:
    """Both languages' forms, whom the verb suits as subject and object, and what German makes of the objects."""

    english: str
    third: str
    past: str
    german: str  # the infinitive, with a bar behind a separable prefix
    german_third: str
    participle: str
    subjects: str
    objects: str = ""
    cases: tuple[int, ...] = (ACCUSATIVE,)
    preposition: str = ""  # governs the German object
    auxiliary: str = "haben"
    preterite: str = ""  # the few verbs whose past is not told in the perfect
    place: str = ""  # "at": may take a place, "to": needs a goal

    def present(self) -> tuple[str, str, str]:
        """Conjugate for ich, er and wir, without a separable prefix."""
        base = self.german.rpartition("|")[2]
        return ("bin", "ist", "sind") if base == "sein" else (base[:-1], self.german_third, base)


@dataclass(frozen=True)
class Adjective:
    """An adjective with the noun kinds it suits; `stem` is given where endings do not simply follow the word."""

    english: str
    german: str
    kinds: str
    stem: str = ""
    group: str = ""  # "mood": changes with time, "color": may follow another adjective


@dataclass(frozen=True)
class Adverb:
    """A time phrase or question word; `middle` ones precede the English verb and never open a sentence."""

    english: str
    german: str
    tenses: str = "present past future"
    negatable: bool = True
    middle: bool = False


@dataclass(frozen=True)
class Determiner:
    """An article or possessive; the German stem takes its endings from `determiner_form`."""

    english: str
    english_plural: str
    german: str
    definite: bool = True


@dataclass(frozen=True)
class Modal:
    """A verb that sends the other verb to the end of a German main clause."""

    english: tuple[str, str]
    german: tuple[str, str, str]
    german_negated: tuple[str, str, str] = ("", "", "")
    auxiliary: bool = True  # English does without 'do'


@dataclass(frozen=True)
class Preposition:
    """A preposition of place with the German case it governs."""

    english: str
    german: str
    case: int


@dataclass(frozen=True)
class Conjunction:
    """A conjunction with the punctuation before it; German may use another word in the past."""

    english: str
    german: str
    german_past: str = ""
    coordinating: bool = False
    free: bool = False  # the second clause may have a tense of its own


@dataclass(frozen=True)
class Pronoun:
    """A pronoun, or a name, whose forms are all alike."""

    english: str
    english_object: str
    german_forms: tuple[str, str, str]
    agreement: int = THIRD
    determiner: Determiner = Determiner("", "", "")

    def in_english(self, is_object: bool = False) -> str:
        """Return the subject or the object form."""
        return self.english_object if is_object else self.english

    def in_german(self, case: int) -> str:
        """Return the form for a case."""
        return self.german_forms[case]


NOUNS = (
    Noun("man", "men", "Mann", "Männer", "m", "p"),
    Noun("woman", "women", "Frau", "Frauen", "f", "p"),
    Noun("child", "children", "Kind", "Kinder", "n", "p"),
    Noun("girl", "girls", "Mädchen", "Mädchen", "n", "p"),
    Noun("boy", "boys", "Junge", "Jungen", "m", "p", "Jungen"),
    Noun("teacher", "teachers", "Lehrer", "Lehrer", "m", "p"),
    Noun("student", "students", "Student", "Studenten", "m", "p", "Studenten"),
    Noun("doctor", "doctors", "Arzt", "Ärzte", "m", "p"),
    Noun("queen", "queens", "Königin", "Königinnen", "f", "p"),
    Noun("sister", "sisters", "Schwester", "Schwestern", "f", "p"),
    Noun("brother", "brothers", "Bruder", "Brüder", "m", "p"),
    Noun("aunt", "aunts", "Tante", "Tanten", "f", "p"),
    Noun("dog", "dogs", "Hund", "Hunde", "m", "a"),
    Noun("cat", "cats", "Katze", "Katzen", "f", "a"),
    Noun("horse", "horses", "Pferd", "Pferde", "n", "a"),
    Noun("bird", "birds", "Vogel", "Vögel", "m", "a"),
    Noun("mouse", "mice", "Maus", "Mäuse", "f", "a"),
    Noun("cow", "cows", "Kuh", "Kühe", "f", "a"),
    Noun("book", "books", "Buch", "Bücher", "n", "t"),
    Noun("letter", "letters", "Brief", "Briefe", "m", "t"),
    Noun("picture", "pictures", "Bild", "Bilder", "n", "t"),
    Noun("flower", "flowers", "Blume", "Blumen", "f", "t"),
    Noun("key", "keys", "Schlüssel", "Schlüssel", "m", "t"),
    Noun("umbrella", "umbrellas", "Regenschirm", "Regenschirme", "m", "t"),
    Noun("box", "boxes", "Kiste", "Kisten", "f", "to"),
    Noun("bag", "bags", "Tasche", "Taschen", "f", "to"),
    Noun("door", "doors", "Tür", "Türen", "f", "o"),
    Noun("window", "windows", "Fenster", "Fenster", "n", "o"),
    Noun("apple", "apples", "Apfel", "Äpfel", "m", "f"),
    Noun("egg", "eggs", "Ei", "Eier", "n", "f"),
    Noun("cake", "cakes", "Kuchen", "Kuchen", "m", "f"),
    Noun("pear", "pears", "Birne", "Birnen", "f", "f"),
    Noun("garden", "gardens", "Garten", "Gärten", "m", "l"),
    Noun("house", "houses", "Haus", "Häuser", "n", "l"),
    Noun("kitchen", "kitchens", "Küche", "Küchen", "f", "l"),
    Noun("school", "schools", "Schule", "Schulen", "f", "l"),
    Noun("church", "churches", "Kirche", "Kirchen", "f", "l"),
    Noun("forest", "forests", "Wald", "Wälder", "m", "l"),
    Noun("room", "rooms", "Zimmer", "Zimmer", "n", "l"),
)
NAMES = tuple(Pronoun(n, n, (n, n, n)) for n in ("Anna", "Clara", "Maria", "Paul", "Peter", "Thomas"))
PRONOUNS = (
    Pronoun("I", "me", ("ich", "mich", "mir"), FIRST),
    Pronoun("we", "us", ("wir", "uns", "uns"), PLURAL),
    Pronoun("he", "him", ("er", "ihn", "ihm")),
    Pronoun("she", "her", ("sie", "sie", "ihr")),
    Pronoun("they", "them", ("sie", "sie", "ihnen"), PLURAL),
)
WHO = Pronoun("who", "whom", ("wer", "wen", "wem"))
VERBS = (
    Verb("see", "sees", "saw", "sehen", "sieht", "gesehen", "pa", "patof", place="at"),
    Verb("find", "finds", "found", "finden", "findet", "gefunden", "pa", "patf", place="at"),
    Verb("look for", "looks for", "looked for", "suchen", "sucht", "gesucht", "pa", "patf", place="at"),
    Verb("love", "loves", "loved", "lieben", "liebt", "geliebt", "p", "pa"),
    Verb("visit", "visits", "visited", "besuchen", "besucht", "besucht", "p", "p"),
    Verb("buy", "buys", "bought", "kaufen", "kauft", "gekauft", "p", "atf"),
    Verb("have", "has", "had", "haben", "hat", "gehabt", "p", "atf", preterite="hatte"),
    Verb("eat", "eats", "ate", "essen", "isst", "gegessen", "pa", "f", place="at"),
    Verb("wash", "washes", "washed", "waschen", "wäscht", "gewaschen", "p", "af", place="at"),
    Verb("open", "opens", "opened", "auf|machen", "macht", "aufgemacht", "p", "o"),
    Verb("close", "closes", "closed", "zu|machen", "macht", "zugemacht", "p", "o"),
    Verb("call", "calls", "called", "an|rufen", "ruft", "angerufen", "p", "p"),
    Verb("invite", "invites", "invited", "ein|laden", "lädt", "eingeladen", "p", "p"),
    Verb("look at", "looks at", "looked at", "an|sehen", "sieht", "angesehen", "pa", "pat"),
    Verb("listen to", "listens to", "listened to", "zu|hören", "hört", "zugehört", "p", "p", (DATIVE,)),
    Verb("help", "helps", "helped", "helfen", "hilft", "geholfen", "p", "pa", (DATIVE,)),
    Verb("thank", "thanks", "thanked", "danken", "dankt", "gedankt", "p", "p", (DATIVE,)),
    Verb("follow", "follows", "followed", "folgen", "folgt", "gefolgt", "pa", "pa", (DATIVE,), auxiliary="sein"),
    Verb("wait for", "waits for", "waited for", "warten", "wartet", "gewartet", "pa", "pa", (ACCUSATIVE,), "auf", place="at"),
    Verb("play with", "plays with", "played with", "spielen", "spielt", "gespielt", "pa", "pa", (DATIVE,), "mit", place="at"),
    Verb("talk to", "talks to", "talked to", "sprechen", "spricht", "gesprochen", "p", "p", (DATIVE,), "mit", place="at"),
    Verb("give", "gives", "gave", "geben", "gibt", "gegeben", "p", "atf", (DATIVE, ACCUSATIVE)),
    Verb("show", "shows", "showed", "zeigen", "zeigt", "gezeigt", "p", "atf", (DATIVE, ACCUSATIVE)),
    Verb("bring", "brings", "brought", "bringen", "bringt", "gebracht", "p", "atf", (DATIVE, ACCUSATIVE)),
    Verb("sleep", "sleeps", "slept", "schlafen", "schläft", "geschlafen", "pa", cases=(), place="at"),
    Verb("work", "works", "worked", "arbeiten", "arbeitet", "gearbeitet", "p", cases=(), place="at"),
    Verb("dance", "dances", "danced", "tanzen", "tanzt", "getanzt", "p", cases=(), place="at"),
    Verb("go", "goes", "went", "gehen", "geht", "gegangen", "p", cases=(), auxiliary="sein", place="to"),
    Verb("run", "runs", "ran", "laufen", "läuft", "gelaufen", "pa", cases=(), auxiliary="sein", place="to"),
)
