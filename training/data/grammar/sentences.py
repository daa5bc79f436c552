"""From structure to text: phrases, clauses and sentences of the demo's grammar, realized in English and German."""

import re
from dataclasses import dataclass

from training.data.grammar import lexicon
from training.data.grammar.lexicon import (
    ACCUSATIVE,
    DATIVE,
    NOMINATIVE,
    PLURAL,
    THIRD,
    Noun,
    Pronoun,
    Verb,
    Word,
    number_words,
)


# Nominative, accusative and dative; masculine, feminine, neuter and plural.
DEFINITE = {"m": "der/den/dem", "f": "die/die/der", "n": "das/das/dem", "p": "die/die/den"}
STRONG = {"m": "er/en/em", "f": "e/e/er", "n": "es/es/em", "p": "e/e/en"}
WEAK = {"m": "e/en/en", "f": "e/e/en", "n": "e/e/en", "p": "en/en/en"}
BARE = {("m", NOMINATIVE), ("n", NOMINATIVE), ("n", ACCUSATIVE)}  # where 'ein', 'kein' and 'mein' have no ending


def join(*words: str) -> str:
    """Join the words that are not empty."""
    return " ".join(filter(None, words))


@dataclass(frozen=True)
class NounPhrase:
    """A noun with its determiner, adjectives and number; the count is 0 where no number is named."""

    noun: Noun
    determiner: Word = lexicon.THE
    plural: bool = False
    adjectives: tuple[Word, ...] = ()
    count: int = 0

    @property
    def agreement(self) -> int:
        """Return the verb form that the phrase takes as a subject."""
        return PLURAL if self.plural else THIRD

    @property
    def gender(self) -> str:
        """Return the key of the phrase in the tables of endings."""
        return "p" if self.plural else self.noun.gender

    def in_english(self, is_object: bool = False) -> str:
        """Realize the phrase; an English noun is the same as subject and as object."""
        determiner = self.determiner.english.split("/")[-1 if self.plural else 0]
        count = number_words(self.count)[0] if self.count else ""
        noun = self.noun.english.split("/")[self.plural]
        text = join(count, *(adjective.english for adjective in self.adjectives), noun)
        return join("an" if determiner == "a" and text[0] in "aeiou" else determiner, text)

    def in_german(self, case: int) -> str:
        """Decline the phrase; the adjective takes the strong ending unless the determiner has shown it already."""
        the, strong, weak = (table[self.gender].split("/")[case] for table in (DEFINITE, STRONG, WEAK))
        determiner, shown = self.determiner.german, True
        if self.determiner is lexicon.THE:
            determiner = the
        elif self.determiner is lexicon.A and self.plural:
            determiner, shown = "", False
        elif self.determiner is not lexicon.THIS and (self.gender, case) in BARE:
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
    """A subject with its verb, objects, time and place; the predicate is the adjective after 'be'."""

    subject: Nominal
    verb: Verb
    objects: tuple[Nominal, ...] = ()
    past: bool = False
    negated: bool = False
    modal: Word | None = None
    time: Word | None = None
    preposition: Word = lexicon.IN
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
        """Return the auxiliary, empty if there is none, and the rest."""
        who, third = self.subject.agreement, self.subject.agreement == THIRD
        base, present, past = self.verb.english.split("/")
        if self.modal is not None and "auxiliary" in self.modal.tags:
            return self.modal.english, base
        if self.modal is not None:
            base, present = (f"{form} {base}" for form in self.modal.english.split("/"))
        elif self.verb is lexicon.BE:
            return (("was", "was", "were") if self.past else ("am", "is", "are"))[who], ""
        if inverted or self.negated:
            return "did" if self.past else "does" if third else "do", base
        return "", past if self.past else present if third else base

    def german_verbs(self) -> tuple[str, str, bool]:
        """Return the finite verb, the end of the clause, and whether they are written as one where they meet."""
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
        """Order the words between the verbs: known objects, time, negation, place, new or prepositional objects."""
        known, new = [], []
        for case, phrase in zip(self.verb.cases, self.objects, strict=False):
            is_known = "known" in phrase.determiner.tags and not self.verb.preposition
            (known if is_known else new).append(join(self.verb.preposition, phrase.in_german(case)))
        negated = self.negated and all(phrase.determiner is not lexicon.NOT_A for phrase in self.objects)
        case = ACCUSATIVE if self.preposition is lexicon.INTO else DATIVE
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
        text = self.main.in_english(inverted=self.question and self.main.subject is not lexicon.WHO)
        text = join(self.opener.english if self.opener else "", text)
        if self.conjunction and self.second:
            second = f"{self.conjunction.english} {self.second.in_english()}"
            text = f"{second.strip()}, {text}" if self.second_first else text + second
        return finish(text, self.question)

    def in_german(self) -> str:
        """Realize the sentence; if anything but the subject opens the main clause, the subject follows the verb."""
        opened = self.question or self.opener or self.second_first
        text = self.main.in_german("first" if opened and self.main.subject is not lexicon.WHO else "second")
        text = join(self.opener.german if self.opener else "", text)
        if self.conjunction and self.second:
            order = "second" if "main" in self.conjunction.tags else "last"
            second = f"{self.conjunction.german} {self.second.in_german(order)}"
            text = f"{second.strip(', ')}, {text}" if self.second_first else text + second
        return finish(text.replace(" in dem ", " im ").replace(" in das ", " ins "), self.question)


def finish(text: str, question: bool) -> str:
    """Capitalize, and add the final mark."""
    return text[0].upper() + text[1:] + ("?" if question else ".")
