"""Header lines: how to tell column names from a first pair of sentences."""

import re
from collections.abc import Sequence

from vaswani.errors import UserError


ISO_639_1 = """
    aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en
    eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja
    jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb
    nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so
    sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""
# The same languages by three letters.
ISO_639_2 = """
    aar abk afr aka alb amh ara arg arm asm ava ave aym aze bak bam baq bel ben bis bod bos bre bul bur cat ces cha
    che chi chu chv cor cos cre cym cze dan deu div dut dzo ell eng epo est eus ewe fao fas fij fin fra fre fry ful
    geo ger gla gle glg glv gre grn guj hat hau hbs heb her hin hmo hrv hun hye ibo ice ido iii iku ile ina ind ipk
    isl ita jav jpn kal kan kas kat kau kaz khm kik kin kir kom kon kor kua kur lao lat lav lim lin lit ltz lub lug
    mac mah mal mao mar may mkd mlg mlt mon mri msa mya nau nav nbl nde ndo nep nld nno nob nor nya oci oji ori orm
    oss pan per pli pol por pus que roh ron rum run rus sag san sin slk slo slv sme smo sna snd som sot spa sqi srd
    srp ssw sun swa swe tah tam tat tel tgk tgl tha tib tir ton tsn tso tuk tur twi uig ukr urd uzb ven vie vol wel
    wln wol xho yid yor zha zho zul
"""
ENGLISH_NAMES = """
    afrikaans albanian amharic arabic armenian assamese azerbaijani bashkir basque belarusian bengali bosnian breton
    bulgarian burmese cantonese castilian catalan chinese croatian czech danish dutch english estonian faroese farsi
    finnish flemish french galician georgian german greek gujarati haitian hausa hawaiian hebrew hindi hungarian
    icelandic igbo indonesian irish italian japanese javanese kannada kazakh khmer korean kurdish kyrgyz lao latin
    latvian letzeburgesch lingala lithuanian luxembourgish macedonian malagasy malay malayalam maltese mandarin maori
    marathi moldavian moldovan mongolian myanmar nepali norwegian nynorsk occitan odia oriya panjabi pashto persian
    polish portuguese punjabi pushto romanian russian sanskrit serbian shona sindhi sinhala sinhalese slovak slovenian
    somali spanish sundanese swahili swedish tagalog tajik tamil tatar telugu thai tibetan turkish turkmen ukrainian
    urdu uzbek valencian vietnamese welsh xhosa yiddish yoruba zulu
"""
LANGUAGE_CODES = frozenset((ISO_639_1 + ISO_639_2).split())
LANGUAGE_NAMES = frozenset(ENGLISH_NAMES.split())
OTHER_NAMES = frozenset(("source", "target", "src", "tgt", "trg"))
# A code with a script or a region, such as pt-BR, en_XX or deu_Latn.
LONG_CODE = re.compile(r"[a-z]{2,3}([-_]([A-Z][a-z]{3}|[A-Z]{2}|[0-9]{3}))+")


def looks_like_header(fields: Sequence[str], languages: Sequence[str]) -> bool:
    """Return whether the fields of a first line are column names rather than sentences.

    Column names are different single words, where either each is the code of a language (``en``, ``DE``, ``deu``,
    ``pt-BR``, ``deu_Latn``), its English name or a word such as ``source``, or one of them is a language that is asked
    for. So ``no<TAB>no``, ``Yes<TAB>Oui``, ``to<TAB>nach`` and ``English<TAB>Englisch`` are sentences. `languages` are
    those that are asked for.
    """
    words = [field.strip() for field in fields]
    if len(words) < 2 or len({word.lower() for word in words}) < len(words):
        return False
    if not all(re.fullmatch(r"[\w-]+", word) for word in words):
        return False
    return any(word in languages for word in words) or all(map(_is_name, words))


def is_language_code(word: str) -> bool:
    """Return whether a word is the code of a language, of two letters or three, or with a script or region behind."""
    return word.lower() in LANGUAGE_CODES or LONG_CODE.fullmatch(word) is not None


def _is_name(word: str) -> bool:
    return word.lower() in LANGUAGE_NAMES | OTHER_NAMES or is_language_code(word)


def find_columns(header: Sequence[str], languages: Sequence[str], path: str) -> list[int]:
    """Return the column of each language in a file.

    Raises
    ------
    UserError
        If the header lacks a language, or has it twice.
    """
    if any(header.count(language) != 1 for language in languages):
        raise UserError(
            f"the header of {path} must name each of {list_names(languages)} once, but its columns are "
            + list_names(header)
        )
    return [header.index(language) for language in languages]


def list_names(names: Sequence[str]) -> str:
    """Return names in quotes, separated by commas."""
    return ", ".join(map(repr, names))
