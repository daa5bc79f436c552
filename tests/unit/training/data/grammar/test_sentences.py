"""Phrases, clauses and sentences against translations that were written by hand."""

from functools import partial

import pytest

from training.data.grammar import lexicon
from training.data.grammar.sentences import Clause, Nominal, NounPhrase, Sentence


WORDS = {
    word.english.split("/")[0]: word
    for word in (*lexicon.NOUNS, *lexicon.VERBS, *lexicon.SAYING, *lexicon.ADJECTIVES, *lexicon.ADVERBS)
}
ME, WE, HE, SHE, THEY = lexicon.PRONOUNS
ANNA, *_, PETER, THOMAS = lexicon.NAMES


def phrase(determiner: lexicon.Word, words: str, count: int | None = None, **fields) -> NounPhrase:
    """Make a phrase of adjectives and a noun; a count, which may be 0, makes it plural."""
    *adjectives, noun = (WORDS[word] for word in words.split())
    return NounPhrase(noun, determiner, count is not None, tuple(adjectives), count or 0, **fields)


def say(subject: Nominal, verb: str, *objects: Nominal, time: str = "", at: str = "", **fields) -> Clause:
    """Make a clause; time and place are given in English."""
    place = phrase(lexicon.THE, at) if at else None
    return Clause(subject, WORDS[verb], objects, time=WORDS.get(time), place=place, **fields)


def ask(clause: Clause, word: lexicon.Word | None = None) -> Sentence:
    return Sentence(clause, word, question=True)


def join(main: Clause, conjunction: lexicon.Word, second: Clause, first: bool = False) -> Sentence:
    return Sentence(main, conjunction=conjunction, second=second, second_first=first)


the, a, not_a, her = (
    partial(phrase, determiner) for determiner in (lexicon.THE, lexicon.A, lexicon.NOT_A, lexicon.HER)
)
MAN, WOMAN, CHILD, DOG, DOOR, CAT = map(the, ("man", "woman", "child", "dog", "door", "cat"))
TIRED = Clause(the("cat", 0), lexicon.BE, past=True, negated=True, predicate=WORDS["tired"])
OPEN = say(MAN, "open", DOOR)

# fmt: off
TRANSLATIONS = [
    (say(MAN, "give", WOMAN, a("small dog")),
     "The man gives the woman a small dog. Der Mann gibt der Frau einen kleinen Hund."),
    (say(a("small child"), "see", her("small child")),
     "A small child sees her small child. Ein kleines Kind sieht ihr kleines Kind."),
    (say(phrase(lexicon.THIS, "old boy"), "help", phrase(lexicon.OUR, "aunt")),
     "This old boy helps our aunt. Dieser alte Junge hilft unserer Tante."),
    (say(ME, "wait for", the("boy"), at="dark room"),
     "I wait for the boy in the dark room. Ich warte im dunklen Zimmer auf den Jungen."),
    (say(a("aunt", 0), "have", a("expensive box", 0)), "Aunts have expensive boxes. Tanten haben teure Kisten."),
    (say(phrase(lexicon.NO, "dog"), "play with", her("mouse", 0)),
     "No dog plays with her mice. Kein Hund spielt mit ihren Mäusen."),
    (say(THEY, "show", HE, CAT), "They show him the cat. Sie zeigen ihm die Katze."),
    (say(DOG, "run", at="house", preposition=lexicon.INTO), "The dog runs into the house. Der Hund läuft ins Haus."),
    (Sentence(say(the("small dog"), "see", CAT), WORDS["today"]),
     "Today the small dog sees the cat. Heute sieht der kleine Hund die Katze."),
    (say(MAN, "see", DOG, time="today"), "The man sees the dog today. Der Mann sieht den Hund heute."),
    (say(MAN, "see", a("dog"), time="today"), "The man sees a dog today. Der Mann sieht heute einen Hund."),
    (say(ME, "call", ANNA, modal=lexicon.WILL, time="tomorrow"),
     "I will call Anna tomorrow. Ich werde Anna morgen anrufen."),
    (say(CHILD, "eat", the("apple"), past=True), "The child ate the apple. Das Kind hat den Apfel gegessen."),
    (say(the("horse", 0), "follow", ME, past=True), "The horses followed me. Die Pferde sind mir gefolgt."),
    (say(THEY, "have", a("key"), past=True), "They had a key. Sie hatten einen Schlüssel."),
    (TIRED, "The cats were not tired. Die Katzen waren nicht müde."),
    (OPEN, "The man opens the door. Der Mann macht die Tür auf."),
    (say(MAN, "open", DOOR, past=True), "The man opened the door. Der Mann hat die Tür aufgemacht."),
    (say(MAN, "open", DOOR, modal=lexicon.MUST), "The man must open the door. Der Mann muss die Tür aufmachen."),
    (join(say(SHE, "work"), lexicon.BECAUSE, OPEN),
     "She works because the man opens the door. Sie arbeitet, weil der Mann die Tür aufmacht."),
    (say(MAN, "see", DOG, negated=True), "The man does not see the dog. Der Mann sieht den Hund nicht."),
    (say(MAN, "have", not_a("dog"), negated=True), "The man does not have a dog. Der Mann hat keinen Hund."),
    (say(WE, "buy", not_a("egg", 0), negated=True, past=True),
     "We did not buy any eggs. Wir haben keine Eier gekauft."),
    (say(SHE, "talk to", ANNA, negated=True, modal=lexicon.CAN),
     "She cannot talk to Anna. Sie kann nicht mit Anna sprechen."),
    (say(HE, "close", DOOR, negated=True, modal=lexicon.MUST_NOT),
     "He must not close the door. Er darf die Tür nicht zumachen."),
    (ask(say(WOMAN, "see", CHILD)), "Does the woman see the child? Sieht die Frau das Kind?"),
    (ask(say(WOMAN, "invite", THEY, past=True), lexicon.WHY),
     "Why did the woman invite them? Warum hat die Frau sie eingeladen?"),
    (ask(say(THOMAS, "work", modal=lexicon.WANT), lexicon.WHERE),
     "Where does Thomas want to work? Wo will Thomas arbeiten?"),
    (ask(say(lexicon.WHO, "help", the("queen"))), "Who helps the queen? Wer hilft der Königin?"),
    (say(ME, "see", a("dog", 21)), "I see twenty-one dogs. Ich sehe einundzwanzig Hunde."),
    (say(ME, "help", a("small dog", 17)), "I help seventeen small dogs. Ich helfe siebzehn kleinen Hunden."),
    (say(the("small dog", 30), "see", ME), "The thirty small dogs see me. Die dreißig kleinen Hunde sehen mich."),
    (join(say(ANNA, "say"), lexicon.THAT, say(HE, "see", CAT, past=True)),
     "Anna says that he saw the cat. Anna sagt, dass er die Katze gesehen hat."),
    (join(OPEN, lexicon.IF, say(DOG, "go", modal=lexicon.CAN), True),
     "If the dog can go, the man opens the door. Wenn der Hund gehen kann, macht der Mann die Tür auf."),
    (join(TIRED, lexicon.ONCE, say(HE, "look at", ME, past=True)),
     "The cats were not tired when he looked at me. Die Katzen waren nicht müde, als er mich angesehen hat."),
    (join(say(ANNA, "work"), lexicon.AND, say(PETER, "sleep")),
     "Anna works, and Peter sleeps. Anna arbeitet und Peter schläft."),
]
# fmt: on


@pytest.mark.parametrize(("structure", "texts"), TRANSLATIONS, ids=[texts for _, texts in TRANSLATIONS])
def test_translation(structure, texts):
    sentence = structure if isinstance(structure, Sentence) else Sentence(structure)
    assert f"{sentence.in_english()} {sentence.in_german()}" == texts


def test_a_bag_of_words_cannot_be_translated():
    one, other = Sentence(say(WOMAN, "see", DOG)), Sentence(say(DOG, "see", WOMAN))
    assert sorted(one.in_english().lower()[:-1].split()) == sorted(other.in_english().lower()[:-1].split())
    assert sorted(one.in_german().lower()[:-1].split()) != sorted(other.in_german().lower()[:-1].split())


@pytest.mark.parametrize(
    ("determiner", "words", "forms"),
    [
        (lexicon.THE, "small dog", "der kleine Hund, den kleinen Hund, dem kleinen Hund"),
        (lexicon.A, "small dog", "ein kleiner Hund, einen kleinen Hund, einem kleinen Hund"),
        (lexicon.A, "expensive flower", "eine teure Blume, eine teure Blume, einer teuren Blume"),
        (lexicon.MY, "dark room", "mein dunkles Zimmer, mein dunkles Zimmer, meinem dunklen Zimmer"),
        (lexicon.THIS, "tired boy", "dieser müde Junge, diesen müden Jungen, diesem müden Jungen"),
    ],
)
def test_every_case_of_a_phrase(determiner, words, forms):
    assert ", ".join(phrase(determiner, words).in_german(case) for case in range(3)) == forms


def test_every_case_of_a_plural():
    assert [a("small dog", 0).in_german(case) for case in range(3)] == [
        "kleine Hunde",
        "kleine Hunde",
        "kleinen Hunden",
    ]
    assert [the("door", 3).in_german(case) for case in range(3)] == [
        "die drei Türen",
        "die drei Türen",
        "den drei Türen",
    ]


def test_an_stands_before_a_vowel_of_the_next_word():
    assert [a(words).in_english() for words in ("egg", "small egg", "old dog", "dog")] == [
        "an egg", "a small egg", "an old dog", "a dog"
    ]  # fmt: skip
