"""The words of the demo's grammar in both languages: their forms, where they suit, and how often they are drawn."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, TypeVar


Choice = TypeVar("Choice")

NOMINATIVE, ACCUSATIVE, DATIVE = range(3)
FIRST, THIRD, PLURAL = range(3)  # whom a verb agrees with: 'I', any other singular, any plural


@dataclass(frozen=True)
class Word:
    """A word of a closed class or an adjective; slashes separate its forms, tags say where it may stand."""

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
    determiner: ClassVar[Word] = Word("", "", "known")  # so that clauses can treat it like a noun phrase

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


def urn(weights: Mapping[Choice, int]) -> tuple[Choice, ...]:
    """Repeat each key as often as its weight says; a uniform draw is then a weighted one."""
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
