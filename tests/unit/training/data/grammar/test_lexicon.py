"""Forms of words, and what is drawn how often."""

import pytest

from training.data.grammar import lexicon
from training.data.grammar.lexicon import ACCUSATIVE, DATIVE, NOMINATIVE, adjectives, nouns, number_words, urn


@pytest.mark.parametrize(
    ("number", "english", "german"),
    [
        (2, "two", "zwei"),
        (16, "sixteen", "sechzehn"),
        (17, "seventeen", "siebzehn"),
        (20, "twenty", "zwanzig"),
        (21, "twenty-one", "einundzwanzig"),
        (30, "thirty", "dreißig"),
        (39, "thirty-nine", "neununddreißig"),
        (76, "seventy-six", "sechsundsiebzig"),
        (90, "ninety", "neunzig"),
        (99, "ninety-nine", "neunundneunzig"),
    ],
)
def test_numbers_are_spelled_with_units_before_tens_in_german(number, english, german):
    assert number_words(number) == (english, german)


def test_no_two_numbers_are_spelled_alike():
    for language in zip(*map(number_words, range(2, 100)), strict=True):
        assert len(set(language)) == 98


@pytest.mark.parametrize(
    ("english", "singular", "plural"),
    [
        ("man", "Mann Mann Mann", "Männer Männer Männern"),
        ("boy", "Junge Jungen Jungen", "Jungen Jungen Jungen"),
        ("doctor", "Arzt Arzt Arzt", "Ärzte Ärzte Ärzten"),
        ("girl", "Mädchen Mädchen Mädchen", "Mädchen Mädchen Mädchen"),
    ],
)
def test_a_noun_has_its_own_plural_dative_and_weak_forms(english, singular, plural):
    [noun] = [noun for noun in lexicon.NOUNS if noun.english.startswith(f"{english}/")]
    cases = NOMINATIVE, ACCUSATIVE, DATIVE
    assert [noun.decline(case, plural=False) for case in cases] == singular.split()
    assert [noun.decline(case, plural=True) for case in cases] == plural.split()


def test_verbs_agree_in_person_and_leave_their_prefix_to_the_clause():
    by_name = {verb.english.split("/")[0]: verb for verb in (*lexicon.VERBS, lexicon.BE)}
    assert by_name["see"].conjugate() == ("sehe", "sieht", "sehen")
    assert by_name["open"].conjugate() == ("mache", "macht", "machen")
    assert by_name["be"].conjugate() == ("bin", "ist", "sind")


def test_pronouns_have_a_form_for_every_case():
    _, we, he, she, they = lexicon.PRONOUNS
    assert [he.in_german(case) for case in (NOMINATIVE, ACCUSATIVE, DATIVE)] == ["er", "ihn", "ihm"]
    assert [she.in_german(case) for case in (NOMINATIVE, ACCUSATIVE, DATIVE)] == ["sie", "sie", "ihr"]
    assert (we.in_english(), we.in_english(is_object=True)) == ("we", "us")
    assert (they.agreement, he.agreement) == (lexicon.PLURAL, lexicon.THIRD)


def test_words_are_chosen_by_the_kinds_that_they_suit():
    assert {noun.kind for noun in nouns("F")} == {"F"}
    assert {noun.kind for noun in nouns("O")} == {"O", "TO"}
    assert len(nouns("PATOFL")) == len(lexicon.NOUNS)
    assert {word.english for word in adjectives("P", "mood")} == {"happy", "sad", "hungry", "tired"}
    assert {word.english for word in adjectives("F")} == {"small", "big", "good", "red"}


def test_an_urn_holds_each_choice_as_often_as_its_weight_says():
    assert urn({"a": 2, None: 1, "b": 3}) == ("a", "a", None, "b", "b", "b")
    assert lexicon.A not in lexicon.KNOWN_ARTICLES
    assert len(lexicon.KNOWN_ARTICLES) + lexicon.ARTICLES.count(lexicon.A) == len(lexicon.ARTICLES)
