"""Both protocols of BLEU, the paper's against a plain implementation from the definition of multi-bleu."""

import importlib
import math
import random
import sys
from collections import Counter

import pytest

from training.settings import ROOT
from vaswani.scoring import protocols
from vaswani.scoring.protocols import (
    check_language,
    is_known,
    moses_languages,
    multi_bleu,
    normalize_punctuation,
    paper_signature,
    prepare,
    score,
    split_compounds,
    suspicions,
    todays_bleu,
    tokenize,
)


REFERENCES = [
    "Er sagte: „Das Rich-Text-Format ist tot.“",
    "Die US-Regierung gab 3,5 Mio. Euro für Pkw-Maut-Pläne aus.",
    "Heute regnet es in Köln, morgen nicht mehr.",
]
HYPOTHESES = [
    'Er sagte: "Das Rich-Text-Format ist alt."',
    "Die US-Regierung gab 3,5 Mio. Dollar für die Pkw-Maut aus.",
    "Es regnet heute in Köln, aber morgen nicht.",
]


def plain_multi_bleu(hypotheses: list[str], references: list[str], brevity: bool = True) -> float:
    """BLEU (Papineni et al. 2002) of text that is tokens set apart by spaces: one reference, nothing smoothed."""
    pairs = [(one.split(" "), other.split(" ")) for one, other in zip(hypotheses, references, strict=True)]
    lengths = [sum(len(pair[side]) for pair in pairs) for side in (0, 1)]
    logarithm = 0.0
    for order in range(1, 5):
        matches = total = 0
        for pair in pairs:
            found, there = (
                Counter(tuple(words[start : start + order]) for start in range(len(words) - order + 1))
                for words in pair
            )
            matches += sum(min(count, there[ngram]) for ngram, count in found.items())
            total += sum(found.values())
        if matches == 0:
            return 0.0
        logarithm += math.log(matches / total) / 4
    penalty = min(0.0, 1 - lengths[1] / lengths[0]) if brevity else 0.0
    return 100 * math.exp(logarithm + penalty)


def random_text(seed: int, sentences: int = 40) -> tuple[list[str], list[str]]:
    """Return references of random words, and hypotheses that drop some words of theirs and replace others."""
    generator = random.Random(seed)
    words = [f"w{number}" for number in range(30)]
    references = [generator.choices(words, k=generator.randrange(1, 25)) for _ in range(sentences)]
    hypotheses = [
        [generator.choice(words) if generator.random() < 0.2 else word for word in line if generator.random() < 0.9]
        for line in references
    ]
    return [" ".join(line or ["w0"]) for line in hypotheses], [" ".join(line) for line in references]


@pytest.mark.parametrize("seed", range(20))
def test_multi_bleu_is_that_of_its_definition(seed):
    hypotheses, references = random_text(seed)
    ours = multi_bleu().corpus_score(hypotheses, [references]).score
    assert ours == pytest.approx(plain_multi_bleu(hypotheses, references), abs=1e-9)
    assert ours != pytest.approx(plain_multi_bleu(hypotheses, references, brevity=False), abs=0.1)  # the control


def test_nothing_is_smoothed_as_it_is_in_sacrebleu():
    row = score(["das ist ein Haus"], ["das war kein Haus"], "de")
    assert row["paper_bleu"] == 0.0
    assert row["sacrebleu"] > 0


def test_the_whole_chain_is_the_plain_one_over_what_was_prepared():
    row = score(HYPOTHESES, REFERENCES, "de")
    for key, split in (("paper_bleu", True), ("paper_bleu_without_split", False)):
        sides = (prepare(side, "de", split) for side in (HYPOTHESES, REFERENCES))
        assert row[key] == pytest.approx(plain_multi_bleu(*sides), abs=0.005)
    assert row["paper_bleu"] > row["paper_bleu_without_split"]


def test_of_text_that_was_tokenized_the_tokens_are_counted_as_they_are():
    """Today's tokenizer would divide each of these tokens in two."""
    hypotheses, references = ([text.replace("w", "Wort.") for text in side] for side in random_text(1))
    hypotheses[0] = hypotheses[0].lower()
    row = score(hypotheses, references, "de", tokenized=True)
    lowered = [[text.lower() for text in side] for side in (hypotheses, references)]
    for key, sides in (("sacrebleu", (hypotheses, references)), ("sacrebleu_lowercased", lowered)):
        assert row[key] == pytest.approx(plain_multi_bleu(*sides), abs=0.005)
        assert score(hypotheses, references, "de")[key] > row[key] + 5
    assert row["sacrebleu_lowercased"] > row["sacrebleu"]
    for key in ("paper_bleu", "paper_bleu_without_split", "paper_bleu_signature"):
        assert row[key] is None


def test_compounds_are_split_as_the_authors_script_splits_them():
    assert split_compounds("rich-text format") == "rich ##AT##-##AT## text format"
    assert split_compounds("rich-text-format") == "rich ##AT##-##AT## text ##AT##-##AT## format"
    assert split_compounds("- a -- b -") == "- a -- b -"
    assert split_compounds("50-%-ige Lösung") == "50 ##AT##-##AT## %-ige Lösung"  # signs are parts of a compound too
    assert split_compounds("a-b-c") == "a ##AT##-##AT## b-c"  # perl's s///g does not look at a character twice


def test_quotes_of_the_reference_become_straight_and_nothing_else_moves():
    text = "„Ja“, sagte sie, «nein» … ‚doch‘ it’s"  # noqa: RUF001
    assert normalize_punctuation(text) == '"Ja", sagte sie, "nein" ... \'doch\' it\'s'
    # `normalize-punctuation.perl` would change the order of comma and quote, which the authors did not.
    assert normalize_punctuation("„Ja,“ sagte er") == '"Ja," sagte er'
    row = score(['Er sagte: "Das Format ist tot."'], ["Er sagte: „Das Format ist tot.“"], "de")
    assert row["paper_bleu"] == 100.0
    assert row["sacrebleu"] < 80


def test_without_the_quotes_the_score_would_be_another(monkeypatch):
    whole = score(HYPOTHESES, REFERENCES, "de")["paper_bleu"]
    monkeypatch.setattr(protocols, "normalize_punctuation", lambda text: text)
    assert score(HYPOTHESES, REFERENCES, "de")["paper_bleu"] < whole - 5


@pytest.mark.parametrize(
    ("language", "text", "tokens"),
    [
        ("de", 'Er sagte: "Nein."', "Er sagte : &quot; Nein . &quot;"),
        ("de", "z. B. 3,5 Mio. Euro, d. h. 50%.", "z. B. 3,5 Mio. Euro , d. h. 50 % ."),
        ("en", "It isn't Mr. Smith's [sic] & Co.", "It isn &apos;t Mr. Smith &apos;s &#91; sic &#93; &amp; Co ."),
        ("ja", "これは 本です。", "これは 本です。"),
        ("ko", "이것은 책이다.", "이것은 책이다 ."),
        ("fr", "C'est l'été, n'est-ce pas ?", "C&apos; est l&apos; été , n&apos; est-ce pas ?"),
        ("de", "der\u00a0Euro\x85 ist\u2028da", "der Euro ist da"),
    ],
)
def test_tokens_are_moses(language, text, tokens):
    assert tokenize(text, language) == tokens


def test_scores_of_the_perfect_the_empty_and_the_lowercased():
    perfect = score(REFERENCES, REFERENCES, "de")
    names = ("sacrebleu", "chrf", "paper_bleu", "paper_bleu_without_split", "exact_match")
    assert [perfect[name] for name in names] == [100.0] * 5
    empty = score([""] * 3, REFERENCES, "de")
    assert [empty[name] for name in names] == [0.0] * 5
    lowered = [text.lower() for text in REFERENCES]
    assert score(lowered, REFERENCES, "de")["paper_bleu"] < 80
    cased = score(lowered, REFERENCES, "de")
    assert cased["sacrebleu_lowercased"] == 100.0
    assert max(cased[name] for name in names if name != "exact_match") < 90
    assert "case:mixed" in cased["sacrebleu_signature"]
    assert "case:mixed" in cased["paper_bleu_signature"]
    both = score(lowered, REFERENCES, "de", lowercase=True)
    assert [both[name] for name in names] == [100.0] * 5
    assert "case:lc" in both["sacrebleu_signature"]
    assert "case:lc" in both["paper_bleu_signature"]
    without = score(REFERENCES, REFERENCES, target_lang=None)
    assert (without["paper_bleu"], without["sacrebleu"]) == (None, 100.0)


CHINESE = "我今天喜欢读书和写字。", "我今天喜欢读书和画画。"


NAMES_OF_CHINESE = ["zh", "zh_CN", "zh-Hans", "zho_Hans", "cmn", "chi", "ZH", "Zh_CN", "chinese", "Mandarin"]


@pytest.mark.parametrize("language", NAMES_OF_CHINESE)
def test_chinese_is_divided_into_characters_as_sacrebleu_does_it(language):
    row = score(CHINESE[:1], CHINESE[1:], language)
    assert 50 < row["sacrebleu"] < 90
    assert "|tok:zh|" in row["sacrebleu_signature"]
    assert "|tok:moses-zh|" in row["paper_bleu_signature"]
    assert score(CHINESE[:1], CHINESE[1:], None)["sacrebleu"] == 0  # by 13a it is one word


@pytest.mark.parametrize("language", ["de", "de_DE", "pt_BR", "tr", "tree", None])
def test_other_languages_are_divided_by_13a(language):
    bleu = todays_bleu(target_lang=language)
    assert bleu.corpus_score(["a-b c, d"], [["a-b c, d"]]).score > 50
    assert "|tok:13a|" in str(bleu.get_signature())


def test_a_language_with_country_or_script_is_known_by_its_code():
    assert is_known("pt_BR")
    assert not is_known("tr_TR")
    assert prepare(["„Das“, d. h. alles."], "de_AT", True) == prepare(["„Das“, d. h. alles."], "de", True)


def test_codes_of_languages_may_be_in_capitals():
    assert is_known("DE")
    assert prepare(["„Das“, d. h. alles."], "DE", True) == prepare(["„Das“, d. h. alles."], "de", True)
    assert "|tok:moses-de|" in paper_signature("DE")


@pytest.mark.parametrize(
    ("language", "extra"), [("ja", "ja"), ("jpn_Jpan", "ja"), ("Japanese", "ja"), ("ko", "ko"), ("korean", "ko")]
)
def test_what_needs_mecab_says_so(language, extra, monkeypatch):
    module = importlib.import_module(f"sacrebleu.tokenizers.tokenizer_{extra}_mecab")
    monkeypatch.setattr(module, "MeCab", None)
    with pytest.raises(ValueError, match=rf'^target_lang={language!r}: .* pip install "sacrebleu\[{extra}\]"$'):
        score(["a"], ["a"], language)
    assert score(["a b c d"], ["a b c d"], language, tokenized=True)["sacrebleu"] == 100


def test_what_cannot_be_scored_is_refused():
    with pytest.raises(ValueError, match="1 hypotheses but 3 references: the numbers must be equal"):
        score(["x"], REFERENCES)
    with pytest.raises(ValueError, match="there are 0 hypotheses"):
        score([], [])
    with pytest.raises(ValueError, match=r"target_lang='xx' must be one of as, bn, .*de, .*zh"):
        score(REFERENCES, REFERENCES, "xx")


def test_tokenized_or_escaped_hypotheses_are_noticed():
    plain = ["Das ist gut.", "Er sagte: „Ja.“"]
    assert suspicions(plain, plain) == []
    for text, sign in (("gu@@ t", "@@"), ("Pkw @-@ Maut", "@-@"), ("a ##AT##-##AT## b", "##AT##"), ("▁Das", "▁")):
        assert f"1 of 2 hypotheses hold {sign}:" in suspicions([text, plain[1]], plain)[0]
    assert "hold &quot; or the like" in suspicions(["&quot; Ja &quot;", plain[1]], plain)[0]
    assert "full stop" in suspicions(["Das ist gut .", plain[1]], plain)[0]
    about_html = ["Schreibe &quot; statt des Zeichens."] * 2
    assert suspicions(about_html, about_html) == []
    twice = [*about_html, *plain], [about_html[0], *plain, "Nein."]
    assert suspicions(*twice) == []
    assert "3 of 4 hypotheses hold &quot;" in suspicions([*about_html, about_html[0], plain[0]], twice[1])[0]
    assert suspicions(["Das ist gu@@ t ."], ["Das ist gut ."], tokenized=True) == []


@pytest.mark.parametrize("tokenized", [False, True])
def test_empty_hypotheses_are_noticed(tokenized):
    references = ["Das ist gut.", "", "Ja."]
    assert suspicions(["Gut.", "", "Ja."], references, tokenized) == []
    [said] = suspicions(["", "", " "], references, tokenized)
    assert said.startswith("2 of 3 hypotheses are empty: with several beams, a search may end at once, unless min_new")


NEWSTEST = ROOT.parent / "shared" / "data" / "wmt14"


@pytest.mark.skipif(not NEWSTEST.exists(), reason="the shared data sets are not beside this checkout")
def test_on_newstest2014_the_paper_s_protocol_forgives_quotes_and_credits_compounds():
    from datasets import load_dataset

    rows = load_dataset(str(NEWSTEST), "de-en", split="test")[:]["translation"]
    references = [row["de"] for row in rows]
    row = score(references, references, "de")
    assert (row["sentences"], row["sacrebleu"], row["paper_bleu"]) == (3003, 100.0, 100.0)
    straight = [text.translate(protocols.STRAIGHT_QUOTES) for text in references]
    assert score(straight, references, "de")["paper_bleu"] == 100.0


def test_without_sacremoses_no_language_is_known_and_the_paper_s_protocol_says_what_it_needs(monkeypatch):
    moses_languages.cache_clear()
    monkeypatch.setitem(sys.modules, "sacremoses.corpus", None)
    try:
        assert moses_languages() == ()
        with pytest.raises(ValueError, match="needs sacremoses"):
            check_language("de")
        assert score(["a"], ["a"], None)["paper_bleu"] is None
    finally:
        moses_languages.cache_clear()
