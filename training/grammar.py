"""A small English-German grammar that writes a training corpus by itself, offline and in seconds.

A sentence is drawn as a structure that belongs to neither language and is then realized once in each. German needs
gender, case, adjective endings, verb-second and verb-final order, separable verbs, modals, the perfect, negation,
questions and numbers in words, so that no word-for-word table can translate it. English to German is a function: no
English sentence has two translations. The grammar does not parse, has no style, and leaves out words that would break
that promise ('you', 'it', 'read').
"""

import argparse
import json
import os
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import ClassVar, TypeVar


Choice = TypeVar("Choice")

GRAMMAR_VERSION = 1  # to be raised when the same arguments would give another corpus
LENGTHS = range(4, 15)  # words in a sentence, on either side
PATIENCE = 10_000  # draws in a row without a new sentence before the grammar counts as exhausted
NOMINATIVE, ACCUSATIVE, DATIVE = range(3)
FIRST, THIRD, PLURAL = range(3)  # whom a verb agrees with: 'I', any other singular, any plural


@dataclass(frozen=True)
class Word:
    """A word of a closed class or an adjective; slashes part its forms, tags say where it may stand."""

    english: str
    german: str
    tags: str = ""


@dataclass(frozen=True)
class Noun:
    """'singular/plural' in both languages; the kind is a P(erson) A(nimal) T(hing) O(pening) F(ood) or L(ocation)."""

    english: str
    german: str
    gender: str
    kind: str
    weak: bool = False  # takes its plural form in the accusative and dative singular too

    def decline(self, case: int, plural: bool) -> str:
        """Return the German form."""
        one, many = self.german.split("/")
        if plural:
            return many + "n" if case == DATIVE and many[-1] not in "ns" else many
        return many if self.weak and case != NOMINATIVE else one


@dataclass(frozen=True)
class Verb:
    """'see/sees/saw' and 'sehen/sieht/gesehen'; subjects and objects are noun kinds, cases those of the objects."""

    english: str
    german: str  # with a bar behind the separable prefix of the infinitive
    subjects: str
    objects: str = ""
    cases: tuple[int, ...] = (ACCUSATIVE,)
    preposition: str = ""  # in German, before the object
    auxiliary: str = "habe/hat/haben"
    preterite: str = ""  # for the few verbs that do not tell the past in the perfect
    place: str = ""  # "at": may take a place, "to": needs a goal

    def conjugate(self) -> tuple[str, str, str]:
        """Return the German present for 'ich', 'er' and 'wir', without the prefix."""
        infinitive, third, _ = self.german.rpartition("|")[2].split("/")
        return ("bin", "ist", "sind") if infinitive == "sein" else (infinitive[:-1], third, infinitive)


@dataclass(frozen=True)
class Pronoun:
    """A pronoun, or a name: 'he/him' and 'er/ihn/ihm'."""

    english: str
    german: str
    agreement: int = THIRD
    determiner: ClassVar[Word] = Word("", "", "known")  # spares clauses the difference to a noun phrase

    def in_english(self, is_object: bool = False) -> str:
        """Return the subject or object form."""
        return self.english.split("/")[is_object]

    def in_german(self, case: int) -> str:
        """Return the form of a case."""
        return self.german.split("/")[case]


# fmt: off
NOUNS = (
    Noun("man/men", "Mann/Männer", "m", "P"), Noun("woman/women", "Frau/Frauen", "f", "P"),
    Noun("child/children", "Kind/Kinder", "n", "P"), Noun("girl/girls", "Mädchen/Mädchen", "n", "P"),
    Noun("boy/boys", "Junge/Jungen", "m", "P", weak=True), Noun("teacher/teachers", "Lehrer/Lehrer", "m", "P"),
    Noun("student/students", "Student/Studenten", "m", "P", weak=True), Noun("doctor/doctors", "Arzt/Ärzte", "m", "P"),
    Noun("queen/queens", "Königin/Königinnen", "f", "P"), Noun("sister/sisters", "Schwester/Schwestern", "f", "P"),
    Noun("brother/brothers", "Bruder/Brüder", "m", "P"), Noun("aunt/aunts", "Tante/Tanten", "f", "P"),
    Noun("dog/dogs", "Hund/Hunde", "m", "A"), Noun("cat/cats", "Katze/Katzen", "f", "A"),
    Noun("horse/horses", "Pferd/Pferde", "n", "A"), Noun("bird/birds", "Vogel/Vögel", "m", "A"),
    Noun("mouse/mice", "Maus/Mäuse", "f", "A"), Noun("cow/cows", "Kuh/Kühe", "f", "A"),
    Noun("book/books", "Buch/Bücher", "n", "T"), Noun("letter/letters", "Brief/Briefe", "m", "T"),
    Noun("picture/pictures", "Bild/Bilder", "n", "T"), Noun("flower/flowers", "Blume/Blumen", "f", "T"),
    Noun("key/keys", "Schlüssel/Schlüssel", "m", "T"), Noun("bag/bags", "Tasche/Taschen", "f", "TO"),
    Noun("umbrella/umbrellas", "Regenschirm/Regenschirme", "m", "T"), Noun("box/boxes", "Kiste/Kisten", "f", "TO"),
    Noun("door/doors", "Tür/Türen", "f", "O"), Noun("window/windows", "Fenster/Fenster", "n", "O"),
    Noun("apple/apples", "Apfel/Äpfel", "m", "F"), Noun("egg/eggs", "Ei/Eier", "n", "F"),
    Noun("cake/cakes", "Kuchen/Kuchen", "m", "F"), Noun("pear/pears", "Birne/Birnen", "f", "F"),
    Noun("garden/gardens", "Garten/Gärten", "m", "L"), Noun("house/houses", "Haus/Häuser", "n", "L"),
    Noun("kitchen/kitchens", "Küche/Küchen", "f", "L"), Noun("school/schools", "Schule/Schulen", "f", "L"),
    Noun("church/churches", "Kirche/Kirchen", "f", "L"), Noun("forest/forests", "Wald/Wälder", "m", "L"),
    Noun("room/rooms", "Zimmer/Zimmer", "n", "L"),
)
NAMES = tuple(Pronoun(f"{n}/{n}", f"{n}/{n}/{n}") for n in ("Anna", "Clara", "Maria", "Paul", "Peter", "Thomas"))
PRONOUNS = (
    Pronoun("I/me", "ich/mich/mir", FIRST), Pronoun("we/us", "wir/uns/uns", PLURAL),
    Pronoun("he/him", "er/ihn/ihm"), Pronoun("she/her", "sie/sie/ihr"), Pronoun("they/them", "sie/sie/ihnen", PLURAL),
)
WHO = Pronoun("who/whom", "wer/wen/wem")
VERBS = (
    Verb("see/sees/saw", "sehen/sieht/gesehen", "PA", "PATOFL"),
    Verb("find/finds/found", "finden/findet/gefunden", "PA", "PATF", place="at"),
    Verb("look for/looks for/looked for", "suchen/sucht/gesucht", "PA", "PATF", place="at"),
    Verb("love/loves/loved", "lieben/liebt/geliebt", "P", "PA"),
    Verb("visit/visits/visited", "besuchen/besucht/besucht", "P", "P"),
    Verb("buy/buys/bought", "kaufen/kauft/gekauft", "P", "ATF"),
    Verb("have/has/had", "haben/hat/gehabt", "P", "ATF", preterite="hatte/hatte/hatten"),
    Verb("eat/eats/ate", "essen/isst/gegessen", "PA", "F", place="at"),
    Verb("wash/washes/washed", "waschen/wäscht/gewaschen", "P", "AF", place="at"),
    Verb("open/opens/opened", "auf|machen/macht/aufgemacht", "P", "O"),
    Verb("close/closes/closed", "zu|machen/macht/zugemacht", "P", "O"),
    Verb("call/calls/called", "an|rufen/ruft/angerufen", "P", "P"),
    Verb("invite/invites/invited", "ein|laden/lädt/eingeladen", "P", "P"),
    Verb("look at/looks at/looked at", "an|sehen/sieht/angesehen", "PA", "PATL"),
    Verb("listen to/listens to/listened to", "zu|hören/hört/zugehört", "P", "P", (DATIVE,)),
    Verb("help/helps/helped", "helfen/hilft/geholfen", "P", "PA", (DATIVE,)),
    Verb("thank/thanks/thanked", "danken/dankt/gedankt", "P", "P", (DATIVE,)),
    Verb("follow/follows/followed", "folgen/folgt/gefolgt", "PA", "PA", (DATIVE,), auxiliary="bin/ist/sind"),
    Verb("wait for/waits for/waited for", "warten/wartet/gewartet", "PA", "PA", preposition="auf", place="at"),
    Verb("play with/plays with/played with", "spielen/spielt/gespielt", "PA", "PA", (DATIVE,), "mit", place="at"),
    Verb("talk to/talks to/talked to", "sprechen/spricht/gesprochen", "P", "P", (DATIVE,), "mit", place="at"),
    Verb("give/gives/gave", "geben/gibt/gegeben", "P", "ATF", (DATIVE, ACCUSATIVE)),
    Verb("show/shows/showed", "zeigen/zeigt/gezeigt", "P", "ATF", (DATIVE, ACCUSATIVE)),
    Verb("bring/brings/brought", "bringen/bringt/gebracht", "P", "ATF", (DATIVE, ACCUSATIVE)),
    Verb("sleep/sleeps/slept", "schlafen/schläft/geschlafen", "PA", cases=(), place="at"),
    Verb("work/works/worked", "arbeiten/arbeitet/gearbeitet", "P", cases=(), place="at"),
    Verb("dance/dances/danced", "tanzen/tanzt/getanzt", "P", cases=(), place="at"),
    Verb("go/goes/went", "gehen/geht/gegangen", "P", cases=(), auxiliary="bin/ist/sind", place="to"),
    Verb("run/runs/ran", "laufen/läuft/gelaufen", "PA", cases=(), auxiliary="bin/ist/sind", place="to"),
)
SAYING = (
    Verb("say/says/said", "sagen/sagt/gesagt", "P", cases=()),
    Verb("believe/believes/believed", "glauben/glaubt/geglaubt", "P", cases=()),
    Verb("hope/hopes/hoped", "hoffen/hofft/gehofft", "P", cases=()),
)
BE = Verb("be/is/was", "sein/ist/gewesen", "", cases=(), preterite="war/war/waren")
ADJECTIVES = (  # tagged with the noun kinds they suit
    Word("small", "klein", "PATOFL"), Word("big", "groß", "ATOFL"), Word("old", "alt", "PATOL"),
    Word("young", "jung", "PA"), Word("new", "neu", "TOL"), Word("beautiful", "schön", "PATL"),
    Word("expensive", "teuer", "TOL"), Word("dark", "dunkel", "L"), Word("good", "gut", "PF"),
    Word("clever", "klug", "PA"), Word("friendly", "freundlich", "PA"), Word("happy", "glücklich", "PA mood"),
    Word("sad", "traurig", "PA mood"), Word("hungry", "hungrig", "PA mood"), Word("tired", "müde", "PA mood"),
    Word("black", "schwarz", "ATO color"), Word("white", "weiß", "ATO color"), Word("red", "rot", "TOF color"),
)
ADVERBS = (  # tagged with the tenses they suit; 'middle' ones stand before the English verb and never come first
    Word("today", "heute", "past present future deniable"), Word("now", "jetzt", "present deniable"),
    Word("on Sunday", "am Sonntag", "past present future deniable"), Word("yesterday", "gestern", "past deniable"),
    Word("in the evening", "am Abend", "past present future deniable"), Word("tomorrow", "morgen", "future deniable"),
    Word("last week", "letzte Woche", "past deniable"), Word("two days ago", "vor zwei Tagen", "past deniable"),
    Word("next week", "nächste Woche", "future deniable"), Word("every day", "jeden Tag", "past present"),
    Word("often", "oft", "past present middle"), Word("always", "immer", "past present middle"),
    Word("never", "nie", "past present middle"),
)
WHY, WHEN, WHERE = Word("why", "warum"), Word("when", "wann"), Word("where", "wo")
THE, THIS, A = Word("the", "d", "known"), Word("this/these", "dies", "known"), Word("a/", "ein")
NO, NOT_A = Word("no", "kein"), Word("a/any", "kein")  # German has one article for 'no dog' and 'not ... a dog'
MY, HIS, HER = Word("my", "mein", "known"), Word("his", "sein", "known"), Word("her", "ihr", "known")
OUR, THEIR = Word("our", "unser", "known"), Word("their", "ihr", "known")
WILL, CAN = Word("will", "werde/wird/werden", "auxiliary"), Word("can", "kann/kann/können", "auxiliary")
MUST, MUST_NOT = Word("must", "muss/muss/müssen", "auxiliary"), Word("must", "darf/darf/dürfen", "auxiliary")
WANT = Word("want to/wants to", "will/will/wollen")
IN, INTO, BEHIND, FRONT = Word("in", "in"), Word("into", "in"), Word("behind", "hinter"), Word("in front of", "vor")
THAT, BECAUSE = Word(" that", ", dass", "free"), Word(" because", ", weil", "free")  # 'free': in a tense of its own
ALTHOUGH, IF = Word(" although", ", obwohl", "free"), Word(" if", ", wenn")
WHENEVER, ONCE = Word(" when", ", wenn"), Word(" when", ", als")  # German has another 'when' in the past
AND, BUT = Word(", and", " und", "main free"), Word(", but", ", aber", "main free")
# fmt: on

# Nominative, accusative and dative; masculine, feminine, neuter and plural.
DEFINITE = {"m": "der/den/dem", "f": "die/die/der", "n": "das/das/dem", "p": "die/die/den"}
STRONG = {"m": "er/en/em", "f": "e/e/er", "n": "es/es/em", "p": "e/e/en"}
WEAK = {"m": "e/en/en", "f": "e/e/en", "n": "e/e/en", "p": "en/en/en"}
BARE = {("m", NOMINATIVE), ("n", NOMINATIVE), ("n", ACCUSATIVE)}  # where 'ein', 'kein' and 'mein' have no ending
ENGLISH_NUMBERS = (
    "zero/one/two/three/four/five/six/seven/eight/nine/ten/eleven/twelve/thirteen/fourteen/fifteen/sixteen/seventeen/"
    "eighteen/nineteen/twenty/thirty/forty/fifty/sixty/seventy/eighty/ninety"
)
GERMAN_NUMBERS = (
    "null/ein/zwei/drei/vier/fünf/sechs/sieben/acht/neun/zehn/elf/zwölf/dreizehn/vierzehn/fünfzehn/sechzehn/siebzehn/"
    "achtzehn/neunzehn/zwanzig/dreißig/vierzig/fünfzig/sechzig/siebzig/achtzig/neunzig"
)
LARGEST_NUMBER = 39  # of those that are drawn: large enough for units before tens


def number_words(number: int) -> tuple[str, str]:
    """Spell 2 to 99 in English and German, where the units come first."""
    english, german = ENGLISH_NUMBERS.split("/"), GERMAN_NUMBERS.split("/")
    tens, units = divmod(number, 10)
    if number < 20 or units == 0:
        index = number if number < 20 else 18 + tens
        return english[index], german[index]
    return f"{english[18 + tens]}-{english[units]}", f"{german[units]}und{german[18 + tens]}"


def join(*words: str) -> str:
    """Join the words that are there."""
    return " ".join(filter(None, words))


@dataclass(frozen=True)
class NounPhrase:
    """A noun with what stands around it; the count is 0 where no number is named."""

    noun: Noun
    determiner: Word = THE
    plural: bool = False
    adjectives: tuple[Word, ...] = ()
    count: int = 0

    @property
    def agreement(self) -> int:
        """Tell which verb form the phrase takes as a subject."""
        return PLURAL if self.plural else THIRD

    @property
    def gender(self) -> str:
        """Return the row of the tables of endings."""
        return "p" if self.plural else self.noun.gender

    def in_english(self, is_object: bool = False) -> str:
        """Realize the phrase; English does not care about the case."""
        determiner = self.determiner.english.split("/")[-1 if self.plural else 0]
        count = number_words(self.count)[0] if self.count else ""
        noun = self.noun.english.split("/")[self.plural]
        text = join(count, *(adjective.english for adjective in self.adjectives), noun)
        return join("an" if determiner == "a" and text[0] in "aeiou" else determiner, text)

    def in_german(self, case: int) -> str:
        """Decline the phrase; the adjective takes the strong ending unless the determiner has shown it already."""
        the, strong, weak = (table[self.gender].split("/")[case] for table in (DEFINITE, STRONG, WEAK))
        determiner, shown = self.determiner.german, True
        if self.determiner is THE:
            determiner = the
        elif self.determiner is A and self.plural:
            determiner, shown = "", False
        elif self.determiner is not THIS and (self.gender, case) in BARE:
            shown = False
        else:
            determiner += strong
        ending = weak if shown else strong
        count = number_words(self.count)[1] if self.count else ""
        # Adjectives in -e, -el and -uer lose that e before an ending.
        stems = (re.sub("e(?=l$)|(?<=u)e(?=r$)|e$", "", adjective.german) for adjective in self.adjectives)
        return join(determiner, count, *(stem + ending for stem in stems), self.noun.decline(case, self.plural))


Nominal = Pronoun | NounPhrase


@dataclass(frozen=True)
class Clause:
    """Who does what to whom, when and where; the predicate is the adjective after 'be'."""

    subject: Nominal
    verb: Verb
    objects: tuple[Nominal, ...] = ()
    past: bool = False
    negated: bool = False
    modal: Word | None = None
    time: Word | None = None
    preposition: Word = IN
    place: NounPhrase | None = None
    predicate: Word | None = None

    def in_english(self, inverted: bool = False) -> str:
        """Realize the clause, with the auxiliary before the subject if it is inverted."""
        auxiliary, verb = self.english_verbs(inverted)
        subject = self.subject.in_english()
        time = self.time.english if self.time else ""
        middle = self.time is not None and "middle" in self.time.tags
        text = join(
            *((auxiliary, subject) if inverted else (subject, auxiliary)),
            "not" if self.negated else "",
            time if middle else "",
            verb,
            *(phrase.in_english(is_object=True) for phrase in self.objects),
            self.predicate.english if self.predicate else "",
            join(self.preposition.english, self.place.in_english()) if self.place else "",
            "" if middle else time,
        )
        return text.replace("can not ", "cannot ")

    def in_german(self, order: str = "second") -> str:
        """Realize the clause with its finite verb "first", "second" or "last"."""
        subject, middle = self.subject.in_german(NOMINATIVE), self.german_middle()
        finite, tail, separable = self.german_verbs()
        if order == "first":
            return join(finite, subject, middle, tail)
        if order == "second":
            return join(subject, finite, middle, tail)
        return join(subject, middle, tail + finite if separable else join(tail, finite))

    def english_verbs(self, inverted: bool) -> tuple[str, str]:
        """Return the auxiliary, where there is one, and the rest."""
        who, third = self.subject.agreement, self.subject.agreement == THIRD
        base, present, past = self.verb.english.split("/")
        if self.modal is not None and "auxiliary" in self.modal.tags:
            return self.modal.english, base
        if self.modal is not None:
            base, present = (f"{form} {base}" for form in self.modal.english.split("/"))
        elif self.verb is BE:
            return (("was", "was", "were") if self.past else ("am", "is", "are"))[who], ""
        if inverted or self.negated:
            return "did" if self.past else "does" if third else "do", base
        return "", past if self.past else present if third else base

    def german_verbs(self) -> tuple[str, str, bool]:
        """Return the finite verb, what closes the clause, and whether they are one word where they meet."""
        who, preterite = self.subject.agreement, self.verb.preterite
        infinitive, _, participle = self.verb.german.split("/")
        if self.modal is not None:
            return self.modal.german.split("/")[who], infinitive.replace("|", ""), False
        if self.past and preterite:
            return preterite.split("/")[who], "", True
        if self.past:
            return self.verb.auxiliary.split("/")[who], participle, False
        return self.verb.conjugate()[who], infinitive.rpartition("|")[0], True

    def german_middle(self) -> str:
        """Order what the verbs enclose: known objects, time, negation, place, new or prepositional objects."""
        known, new = [], []
        for case, phrase in zip(self.verb.cases, self.objects, strict=False):
            is_known = "known" in phrase.determiner.tags and not self.verb.preposition
            (known if is_known else new).append(join(self.verb.preposition, phrase.in_german(case)))
        negated = self.negated and all(phrase.determiner is not NOT_A for phrase in self.objects)
        case = ACCUSATIVE if self.preposition is INTO else DATIVE
        return join(
            *known,
            self.time.german if self.time else "",
            "nicht" if negated else "",
            join(self.preposition.german, self.place.in_german(case)) if self.place else "",
            *new,
            self.predicate.german if self.predicate else "",
        )


@dataclass(frozen=True)
class Sentence:
    """One clause or two; the opener is a fronted time or a question word."""

    main: Clause
    opener: Word | None = None
    question: bool = False
    conjunction: Word | None = None
    second: Clause | None = None
    second_first: bool = False

    def in_english(self) -> str:
        """Realize the sentence with a capital letter and a final mark."""
        text = self.main.in_english(inverted=self.question and self.main.subject is not WHO)
        text = join(self.opener.english if self.opener else "", text)
        if self.conjunction and self.second:
            second = f"{self.conjunction.english} {self.second.in_english()}"
            text = f"{second.strip()}, {text}" if self.second_first else text + second
        return finish(text, self.question)

    def in_german(self) -> str:
        """Realize the sentence: whatever opens the main clause drives the subject behind the verb."""
        opened = self.question or self.opener or self.second_first
        text = self.main.in_german("first" if opened and self.main.subject is not WHO else "second")
        text = join(self.opener.german if self.opener else "", text)
        if self.conjunction and self.second:
            order = "second" if "main" in self.conjunction.tags else "last"
            second = f"{self.conjunction.german} {self.second.in_german(order)}"
            text = f"{second.strip(', ')}, {text}" if self.second_first else text + second
        return finish(text.replace(" in dem ", " im ").replace(" in das ", " ins "), self.question)


def finish(text: str, question: bool) -> str:
    """Capitalize, and add the final mark."""
    return text[0].upper() + text[1:] + ("?" if question else ".")


def urn(weights: Mapping[Choice, int]) -> tuple[Choice, ...]:
    """Repeat each key by its weight, to draw from."""
    return tuple(key for key, weight in weights.items() for _ in range(weight))


ARTICLES = urn({THE: 46, A: 22, THIS: 7, MY: 6, HIS: 6, HER: 6, OUR: 4, THEIR: 3})
KNOWN_ARTICLES = tuple(article for article in ARTICLES if article is not A)
SUBJECT_ARTICLES = (*ARTICLES, NO, NO, NO, NO)
PEOPLE = urn({**dict.fromkeys(PRONOUNS, 8), **dict.fromkeys(NAMES, 4)})
MODALS = urn({None: 60, WILL: 13, CAN: 9, MUST: 9, WANT: 9})
PREPOSITIONS = urn({IN: 70, BEHIND: 15, FRONT: 15})
QUESTION_WORDS = urn({None: 46, WHY: 20, WHEN: 14, WHERE: 20})
CONJUNCTIONS = urn({THAT: 22, BECAUSE: 22, ALTHOUGH: 12, IF: 15, WHENEVER: 15, AND: 7, BUT: 7})


@cache
def nouns(kinds: str) -> tuple[Noun, ...]:
    """Return the nouns of some kinds."""
    return tuple(noun for noun in NOUNS if set(noun.kind) & set(kinds))


@cache
def adjectives(kind: str, group: str = "") -> tuple[Word, ...]:
    """Return the adjectives that suit a kind of noun."""
    return tuple(word for word in ADJECTIVES if set(kind) & set(word.tags) and group in word.tags)


def referent(phrase: Nominal) -> Noun | str:
    """Return what must not be both subject and object, lest a reflexive be needed: a noun, or a pronoun's person."""
    if isinstance(phrase, NounPhrase):
        return phrase.noun
    return "speaker" if phrase in PRONOUNS[:2] else phrase.english


def draw_noun_phrase(rng: random.Random, kinds: str, articles: Sequence[Word] = ARTICLES) -> NounPhrase:
    """Draw a noun with determiner, number and adjectives."""
    noun, determiner, plural = rng.choice(nouns(kinds)), rng.choice(articles), rng.random() < 0.28
    if noun in NOUNS[:2] and "known" in determiner.tags and determiner is not THE:
        determiner = THIS  # 'my woman' would be 'my wife' in German
    count = 0
    if plural and determiner not in (NO, NOT_A) and rng.random() < 0.35:
        count = rng.randint(2, 12) if rng.random() < 0.5 else rng.randint(13, LARGEST_NUMBER)
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
            phrase: Nominal = rng.choice(PEOPLE)
        else:
            phrase = draw_noun_phrase(rng, kinds, articles)
        if other is None or referent(phrase) != referent(other):
            return phrase


def draw_predicate(rng: random.Random, clause: Clause) -> Clause:
    """Add objects and place to a clause that has its subject and verb."""
    verb, objects, place = clause.verb, (), None
    if len(verb.cases) == 2:
        objects = (draw_nominal(rng, "P", KNOWN_ARTICLES, clause.subject),)
    if verb.cases:
        articles = KNOWN_ARTICLES if clause.negated else ARTICLES
        if clause.negated and not verb.preposition and rng.random() < 0.5:
            articles = (NOT_A,)
        patient = draw_nominal(rng, verb.objects, articles, clause.subject)
        if objects and patient.determiner is A:
            patient = replace(patient, plural=False, count=0)  # 'gave her eggs' could be about her eggs
        objects += (patient,)
    # 'nicht' after an object and before a place would deny the place alone.
    placeable = verb.place == "at" and (not clause.negated or not verb.cases or verb.preposition)
    if verb.place == "to" or (placeable and rng.random() < 0.3):
        place = replace(draw_noun_phrase(rng, "L"), plural=False, count=0)
    preposition = INTO if verb.place == "to" else rng.choice(PREPOSITIONS)
    return replace(clause, objects=objects, place=place, preposition=preposition)


def draw_time(rng: random.Random, clause: Clause) -> Word | None:
    """Draw an adverb that suits the clause, if any does."""
    if clause.predicate and "mood" not in clause.predicate.tags:
        return None
    tense = "past" if clause.past else "future" if clause.modal is WILL else "present"
    # 'never' and 'must' would make a denial, and 'not ... often' is not 'often ... not'.
    denied = clause.negated or clause.modal is MUST or clause.subject.determiner is NO
    return rng.choice([time for time in ADVERBS if tense in time.tags and (not denied or "deniable" in time.tags)])


def draw_clause(rng: random.Random, past: bool | None = None, timed: float = 0.3, question: bool = False) -> Clause:
    """Draw a clause; what is asked or denied has a known subject."""
    past = rng.random() < 0.38 if past is None else past
    negated = rng.random() < 0.18
    modal = None if past else rng.choice(MODALS)
    if modal is MUST and negated:
        modal = None if question else MUST_NOT
    articles = KNOWN_ARTICLES if negated or question or modal is MUST else SUBJECT_ARTICLES
    if rng.random() < 0.1:
        kinds, group = ("PA", "mood") if question or rng.random() < 0.6 else ("TOFL", "")
        subject = draw_nominal(rng, kinds, articles)
        kind = "P"
        if isinstance(subject, NounPhrase):
            # Its adjectives might repeat or contradict the predicate.
            subject, kind = replace(subject, adjectives=()), subject.noun.kind
        predicate = rng.choice(adjectives(kind, group))
        clause = Clause(subject, BE, (), past, negated, predicate=predicate)
    else:
        verb = rng.choice(VERBS)
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
    word = rng.choice(QUESTION_WORDS)
    clause = draw_clause(rng, timed=0 if word is WHEN else 0.2, question=True)
    while word is WHERE and clause.verb.place != "at":
        clause = draw_clause(rng, timed=0.2, question=True)
    if word is None and rng.random() < 0.25:
        return Sentence(replace(clause, subject=WHO), question=True)
    return Sentence(replace(clause, place=None) if word is WHERE else clause, word, question=True)


def draw_joined(rng: random.Random) -> Sentence:
    """Draw two clauses and what joins them."""
    conjunction = rng.choice(CONJUNCTIONS)
    main = draw_clause(rng, past=False if conjunction is IF else None, timed=0.1)
    if conjunction is THAT:
        main = Clause(draw_nominal(rng, "P", KNOWN_ARTICLES), rng.choice(SAYING), (), main.past, main.negated)
    past = main.past or ("free" in conjunction.tags and rng.random() < 0.3)
    second = draw_clause(rng, past, timed=0.15)
    if "free" not in conjunction.tags and second.modal is WILL:
        second = replace(second, modal=None)
    first = conjunction is not THAT and "main" not in conjunction.tags and rng.random() < 0.4
    if conjunction is WHENEVER and past:
        conjunction = ONCE
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


def write_atomically(path: Path, text: str) -> None:
    """Write a file that is there as a whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


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
    OSError
        If the directory cannot be written.
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
    directory.mkdir(parents=True, exist_ok=True)
    record.unlink(missing_ok=True)  # comes back last, so that it never vouches for files of another run
    for path, size in files.items():
        rows = [("en", "de"), *islice(pairs, size)]
        write_atomically(path, "".join(f"{english}\t{german}\n" for english, german in rows))
    write_atomically(record, arguments)
    return directory


def main() -> None:
    """Write the corpus as the command line asks."""
    parser = argparse.ArgumentParser(description="Write a corpus of English-German sentence pairs.")
    parser.add_argument("--output_dir", required=True, help="directory of the files")
    for split, size in (("train", 200_000), ("validation", 500), ("test", 500)):
        parser.add_argument(f"--{split}", type=int, default=size, help=f"pairs in {split}.tsv (%(default)s)")
    parser.add_argument("--seed", type=int, default=2017, help="seed of the generator (%(default)s)")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="print N test pairs")
    options = vars(parser.parse_args())
    show = options.pop("show")
    try:
        directory = write_corpus(options.pop("output_dir"), **options)
    except ValueError as error:
        parser.error(str(error))
    for line in (directory / "test.tsv").read_text(encoding="utf-8").splitlines()[1 : show + 1]:
        print("{:<70} {}".format(*line.split("\t")))


if __name__ == "__main__":
    main()
