"""BLEU as the field computes it today, and as the authors of the paper did; both are printed, never mixed up.

Theirs is `get_ende_bleu.sh` of tensor2tensor, with a step that the script does not have (tensor2tensor issue 317):
typographic quotes of the reference had been made straight by hand. It is some 0.7 to 1.5 above sacreBLEU on
newstest2014.

Imports nothing of this project: `evaluate.load` takes this file and its neighbor out of their folder.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import sacrebleu


PAPER_TOKENIZATION = "none"  # sacreBLEU is given tokens, as multi-bleu.perl is

DOUBLE_QUOTES, SINGLE_QUOTES = "„“”‟«»", "‚‘’‛‹›"  # noqa: RUF001
STRAIGHT_QUOTES = str.maketrans(dict.fromkeys(DOUBLE_QUOTES, '"') | dict.fromkeys(SINGLE_QUOTES, "'"))
COMPOUND = re.compile(r"(\S)-(\S)")
SIGNS_OF_TOKENIZATION = {
    "@@": re.compile(r"\S@@(\s|$)"),
    "@-@": re.compile(r"\s@-@\s"),
    "##AT##": re.compile(r"##AT##"),
    "▁": re.compile(r"▁"),
    "&quot; or the like": re.compile(r"&(quot|apos|amp|lt|gt|#91|#93|#124|#39|#34);"),
    "a space before the last full stop": re.compile(r"\w \.$"),
}


# Other codes, and names, of the languages for which sacreBLEU has tokenizers of their own.
CODES = {"zho": "zh", "chi": "zh", "cmn": "zh", "jpn": "ja", "kor": "ko"}
CODES |= {"chinese": "zh", "mandarin": "zh", "japanese": "ja", "korean": "ko"}


# sacremoses takes most of a second to import, which most runs of this project do not need.
@lru_cache
def _tokenizer(language: str) -> Any:
    from sacremoses import MosesTokenizer

    return MosesTokenizer(language)


@lru_cache
def _normalizer() -> Any:
    from sacremoses import MosesPunctNormalizer

    return MosesPunctNormalizer()


@lru_cache
def moses_languages() -> tuple[str, ...]:
    """Return the languages that Moses' tokenizer knows (others silently become English); none if it is absent."""
    try:
        from sacremoses.corpus import NonbreakingPrefixes
    except ModuleNotFoundError:  # a machine that only trains can do without
        return ()
    return tuple(sorted({*NonbreakingPrefixes().available_langs.values(), "ja", "ko"}))


def code_of(language: str) -> str:
    """Return the code by which Moses and sacreBLEU know a language: "pt" of "pt_BR" or "PT", "zh" of "Chinese"."""
    code = re.split("[-_]", language)[0].lower()
    return CODES.get(code, code)


def is_known(language: str) -> bool:
    """Return whether Moses' tokenizer knows a language, as the paper's protocol needs it."""
    return code_of(language) in moses_languages()


def check_language(language: str, setting: str = "target_lang") -> None:
    """Refuse a language that Moses' tokenizer does not know; `setting` is what the user set.

    Raises
    ------
    ValueError
        Naming those that it does.
    """
    if not moses_languages():
        raise ValueError("the paper's protocol needs sacremoses: pip install sacremoses")
    if not is_known(language):
        raise ValueError(f"{setting}={language!r} must be one of {', '.join(moses_languages())}")


def normalize_punctuation(text: str) -> str:
    """Replace punctuation as `replace-unicode-punctuation.perl` does, and make all typographic quotes straight.

    The authors ran the script over hypotheses and changed the quotes of references by hand. Here both steps are done
    to both sides, so that no change to one side counts against the other.
    """
    return text if text.isascii() else _normalizer().replace_unicode_punct(text).translate(STRAIGHT_QUOTES)


def tokenize(text: str, language: str) -> str:
    """Tokenize as Moses' `tokenizer.perl -l language`: tokens set apart by spaces, special characters escaped.

    Raises
    ------
    ValueError
        If the language is unknown.
    """
    check_language(language)
    return _tokenizer(code_of(language)).tokenize(text, return_str=True)


def split_compounds(text: str) -> str:
    """Split tokens at hyphens within them: "rich-text format" becomes "rich ##AT##-##AT## text format"."""
    return COMPOUND.sub(r"\1 ##AT##-##AT## \2", text)


def prepare(sentences: Sequence[str], language: str, split: bool) -> list[str]:
    """Return the tokenized sentences whose n-grams the paper's protocol counts."""
    tokenized = [tokenize(normalize_punctuation(sentence), language) for sentence in sentences]
    return [split_compounds(sentence) for sentence in tokenized] if split else tokenized


def multi_bleu(lowercase: bool = False) -> sacrebleu.BLEU:
    """Return the metric that computes `multi-bleu.perl` of tokenized text, without smoothing."""
    return sacrebleu.BLEU(tokenize=PAPER_TOKENIZATION, smooth_method="none", lowercase=lowercase, force=True)


def paper_signature(language: str, lowercase: bool = False) -> str:
    """Describe the paper's protocol in the style of sacreBLEU's signatures."""
    case = "lc" if lowercase else "mixed"
    versions = f"sacremoses:{version('sacremoses')}|sacrebleu:{sacrebleu.__version__}"
    return f"quotes:straight|tok:moses-{code_of(language)}|compounds:split|case:{case}|smooth:none|{versions}"


def todays_bleu(lowercase: bool = False, tokenized: bool = False, target_lang: str | None = None) -> sacrebleu.BLEU:
    """Return sacreBLEU's metric of plain text; of text that was tokenized before, that which counts its tokens.

    Plain text is divided as sacreBLEU does it by default: by 13a, but Chinese by characters, Japanese and Korean by
    MeCab.

    Raises
    ------
    ValueError
        If MeCab is needed and not installed.
    """
    if tokenized:
        return multi_bleu(lowercase)
    code = code_of(target_lang or "")
    try:
        return sacrebleu.BLEU(lowercase=lowercase, force=True, trg_lang=code)
    except RuntimeError as error:
        raise ValueError(
            f"target_lang={target_lang!r}: sacreBLEU divides it by MeCab, which is not installed: pip install "
            f'"sacrebleu[{code}]"'
        ) from error


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    target_lang: str | None = "de",
    lowercase: bool = False,
    tokenized: bool = False,
) -> dict[str, Any]:
    """Score translations by both protocols.

    Parameters
    ----------
    hypotheses, references : sequence of str
        Plain text, neither tokenized nor escaped.
    target_lang : str or None, default="de"
        Their language, for the tokenizers of both protocols; None leaves the paper's out.
    lowercase : bool, default=False
        Whether case does not matter to any score.
    tokenized : bool, default=False
        Whether the text was tokenized before. Then `sacrebleu` counts its tokens as they are, without smoothing, as
        `multi-bleu.perl` does, and the paper's protocol, which begins with plain text, is left out.

    Returns
    -------
    dict
        `sacrebleu`, `sacrebleu_lowercased`, `sacrebleu_signature`, `chrf`, `chrf_signature`, `paper_bleu`,
        `paper_bleu_without_split`, `paper_bleu_signature`, `exact_match` (percent of hypotheses that equal their
        reference), `sentences`. Those of the paper's protocol are None where it is left out.

    Raises
    ------
    ValueError
        If the numbers of sentences differ or are 0, or the language is unknown or needs MeCab, which is not installed.
    """
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses but {len(references)} references: the numbers must be equal")
    if not references:
        raise ValueError("there are 0 hypotheses and references: there must be at least one of each")
    target_lang = None if tokenized else target_lang
    bleu, lowercased = (todays_bleu(each, tokenized, target_lang) for each in (lowercase, True))
    chrf = sacrebleu.CHRF(lowercase=lowercase)
    compared = str.lower if lowercase else str
    matches = sum(compared(one) == compared(other) for one, other in zip(hypotheses, references, strict=True))
    row = {
        "sacrebleu": bleu.corpus_score(hypotheses, [references]).score,
        "sacrebleu_lowercased": lowercased.corpus_score(hypotheses, [references]).score,
        "chrf": chrf.corpus_score(hypotheses, [references]).score,
        "paper_bleu": None,
        "paper_bleu_without_split": None,
        "exact_match": 100 * matches / len(references),
    }
    if target_lang is not None:
        whole = [prepare(side, target_lang, split=False) for side in (hypotheses, references)]
        parts = [list(map(split_compounds, side)) for side in whole]
        row["paper_bleu"] = multi_bleu(lowercase).corpus_score(parts[0], [parts[1]]).score
        row["paper_bleu_without_split"] = multi_bleu(lowercase).corpus_score(whole[0], [whole[1]]).score
    row = {name: value if value is None else round(value, 2) for name, value in row.items()}
    return row | {
        "sacrebleu_signature": str(bleu.get_signature()),
        "chrf_signature": str(chrf.get_signature()),
        "paper_bleu_signature": None if target_lang is None else paper_signature(target_lang, lowercase),
        "sentences": len(references),
    }


def suspicions(hypotheses: Sequence[str], references: Sequence[str], tokenized: bool = False) -> list[str]:
    """Return what may be wrong with hypotheses that one ought to know of beside their scores.

    That some are empty, and, unless they are said to be `tokenized`, that they look tokenized or escaped, which would
    lower their sacreBLEU, or raise it. Such a sign counts if far more hypotheses than references have it, so that text
    about "&quot;" raises no suspicion.
    """
    found = []
    pairs = zip(hypotheses, references, strict=True)
    empty = sum(1 for hypothesis, reference in pairs if reference.strip() and not hypothesis.strip())
    if empty:
        found.append(
            f"{empty:,} of {len(hypotheses):,} hypotheses are empty: with several beams, a search may end at once, "
            "unless min_new_tokens=1 rules that out"
        )
    for name, pattern in {} if tokenized else SIGNS_OF_TOKENIZATION.items():
        counts = [sum(1 for sentence in side if pattern.search(sentence)) for side in (hypotheses, references)]
        if counts[0] > 2 * counts[1]:
            found.append(
                f"{counts[0]:,} of {len(hypotheses):,} hypotheses hold {name}: they look tokenized or escaped, but "
                "must be plain text"
            )
    return found
