import pytest

from vaswani.errors import UserError
from vaswani.text.headers import LANGUAGE_CODES, LANGUAGE_NAMES, find_columns, looks_like_header


LANGUAGES = "en", "de"


@pytest.mark.parametrize(
    "line",
    [
        "en\tfr",
        "de\tfr",
        "fr\tit",
        "EN\tDE",
        "en \t de",
        "eng\tdeu",
        "ger\teng",
        "en-US\tde-DE",
        "en_XX\tde_DE",
        "eng_Latn\tdeu_Latn",
        "fr\tes-419",
        "en\ttranslation",
        "source\ttarget",
        "German\tEnglish",
        "english\tczech",
        "en\tfr\tit",
    ],
)
def test_a_header_of_other_columns_is_known(line):
    assert looks_like_header(line.split("\t"), LANGUAGES)


@pytest.mark.parametrize(
    "line",
    [
        "A dog.\tEin Hund.",
        "no\tno",
        "No\tno",
        "No\tNein",
        "Yes\tJa",
        "to\tnach",
        "en route\tunterwegs",
        "is\tist",
        "cat\tKatze",
        "yo-yo\tJo-Jo",
        "pop-up\tPop-up",
        "English\tEnglisch",
        "German\tDeutsch",
        "no!\tnein",
        "\t",
        "en",
    ],
)
def test_short_sentences_are_not_taken_for_one(line):
    assert not looks_like_header(line.split("\t"), LANGUAGES)


def test_languages_with_names_of_their_own_are_known_too():
    assert looks_like_header(["English", "French"], ("English", "German"))
    assert not looks_like_header(["English", "Englisch"], LANGUAGES)


def test_the_languages_of_whisper_and_nllb_are_listed():
    from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES
    from transformers.models.whisper.tokenization_whisper import LANGUAGES as WHISPER

    assert {code for code in WHISPER if len(code) == 2} - {"jw"} <= LANGUAGE_CODES  # jw is jv, misspelt
    assert {name for name in WHISPER.values() if " " not in name} <= LANGUAGE_NAMES
    assert all(
        looks_like_header([code, "fra_Latn"], LANGUAGES) for code in FAIRSEQ_LANGUAGE_CODES if code != "fra_Latn"
    )


def test_columns_are_found_once_or_refused():
    assert find_columns(["id", "de", "en"], LANGUAGES, "x") == [2, 1]
    for header in (["en", "fr"], ["en", "de", "en"], []):
        with pytest.raises(UserError, match="the header of x must name each of 'en', 'de' once"):
            find_columns(header, LANGUAGES, "x")
