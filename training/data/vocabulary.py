"""The vocabulary of a run (section 5.1): the tokenizer that the settings name, or one that is trained on the text.

What is made of a text is cached under a hash of it, as by `training.data.preparation`.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import xxhash
from datasets import Dataset, config
from tokenizers import Tokenizer
from tqdm.auto import tqdm
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from training.settings import ModelSettings
from vaswani.errors import UserError, first_line
from vaswani.files import write_text
from vaswani.models.legal_trees_vaswani import PARTS_OF_SPEECH, LegalTrees
from vaswani.tokenization import train_tokenizer, wrap_tokenizer


PAIRS_AT_A_TIME = 5000
DICTIONARY_WORDS = 50_000  # whose parts of speech a parser's tokenizer knows: all of the Penn Treebank's
# Part of the hash that names a cache: raise it when the same text and settings would give another result.
VOCABULARY_VERSION = 1


def load_tokenizer(settings: ModelSettings, train_text: Dataset, has_trees: bool = False) -> PreTrainedTokenizerBase:
    """Load the tokenizer that the settings name, or that of the model to start from, or train one on both languages.

    Where the targets are trees, their symbols are one type each, and the rest is trained on the sources.

    Raises
    ------
    UserError
        If the named tokenizer is missing or unfit, or the text does not support the vocabulary size.
    """
    field = "model_name_or_path" if settings.tokenizer_name is None else "tokenizer_name"
    name = getattr(settings, field)
    if name is not None:
        tokenizer = load_named_tokenizer(name, field)
        if has_trees:
            check_is_parsers(tokenizer, f"{field}={name!r}")
        if settings.model_name_or_path is None and settings.vocab_size not in (None, len(tokenizer)):
            raise UserError(
                f"vocab_size={settings.vocab_size} contradicts tokenizer_name={name!r}, which has {len(tokenizer)} "
                "types: leave vocab_size out"
            )
    else:
        assert settings.vocab_size is not None  # it has a default where there is no tokenizer or model to start from
        tokenizer = _load_own_tokenizer(settings.vocab_size, train_text, has_trees)
    if has_trees:
        add_parts_of_speech(tokenizer, parts_of_speech(train_text))
    return tokenizer


def check_is_parsers(tokenizer: PreTrainedTokenizerBase, given: str) -> None:
    """Refuse a tokenizer that a parser cannot have, such as that of a model that translates."""
    if not tokenizer.is_fast:
        raise UserError(f"{given} is a {type(tokenizer).__name__}: a parser's must have a tokenizer.json")
    try:
        LegalTrees(tokenizer, [["word"]])  # which evaluations search with
    except ValueError as error:
        raise UserError(f"{given}: {error}") from error


def add_parts_of_speech(tokenizer: PreTrainedTokenizerBase, new: dict[str, str]) -> None:
    """Let a tokenizer know parts of speech of words, with a space between two, beside those that it knows."""
    known = tokenizer.init_kwargs.get(PARTS_OF_SPEECH, {})
    both = {word: {*known.get(word, "").split(), *new.get(word, "").split()} for word in known | new}
    tokenizer.init_kwargs[PARTS_OF_SPEECH] = {word: " ".join(sorted(tags)) for word, tags in both.items()}


def parts_of_speech(train_text: Dataset) -> dict[str, str]:
    """Return the parts of speech of the most frequent words of trees, with a space between two.

    Raises
    ------
    UserError
        If a tree does not have exactly one for each word.
    """
    path = cache_path(".parts_of_speech.json", train_text._fingerprint)
    if not path.exists():
        counts: Counter[str] = Counter()
        tags: dict[str, set[str]] = defaultdict(set)
        for sentence, tree in zip(train_text["source"], train_text["target"], strict=True):
            words = sentence.split()
            leaves = [symbol[1:-1] for symbol in tree.split() if symbol[0] == "(" and symbol[-1] == ")"]
            if len(leaves) != len(words):
                raise UserError(f"the tree {tree!r:.80} must have a part of speech for each word of {sentence!r:.80}")
            counts.update(words)
            for word, tag in zip(words, leaves, strict=True):
                tags[word].add(tag)
        frequent = sorted(word for word, _ in counts.most_common(DICTIONARY_WORDS))
        write_text(path, json.dumps({word: " ".join(sorted(tags[word])) for word in frequent}, ensure_ascii=False))
    return json.loads(path.read_text(encoding="utf-8"))


def load_named_tokenizer(name: str, field: str) -> PreTrainedTokenizerBase:
    """Load a tokenizer from the folder or Hub id that a setting names.

    Raises
    ------
    UserError
        Naming the setting, if there is none, or it lacks ``</s>`` or ``<pad>``, or ends no sentence with ``</s>``.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except Exception as error:  # the library raises half a dozen kinds
        raise UserError(f"{field}={name!r} has no tokenizer that can be loaded: {first_line(error)}") from error
    if tokenizer.eos_token_id is None or tokenizer.pad_token_id is None:
        raise UserError(f"{field}={name!r} must have an end-of-sentence and a padding token")
    if tokenizer.eos_token_id not in tokenizer("a").input_ids:  # a model would never learn to end
        raise UserError(f"{field}={name!r} must put {tokenizer.eos_token!r} behind a sentence, and does not")
    for note in ("is_local", "local_files_only"):  # true of this machine only, but would be published
        tokenizer.init_kwargs.pop(note, None)
    return tokenizer


def count_types(settings: ModelSettings) -> int:
    """Return how many types a new model's vocabulary has, that of a named tokenizer or one to be trained.

    Raises
    ------
    UserError
        If the named tokenizer is missing or unfit.
    """
    if settings.tokenizer_name is not None:
        return len(load_named_tokenizer(settings.tokenizer_name, "tokenizer_name"))
    assert settings.vocab_size is not None
    return settings.vocab_size


def _load_own_tokenizer(vocab_size: int, train_text: Dataset, has_trees: bool) -> PreTrainedTokenizerBase:
    origins = [VOCABULARY_VERSION, train_text._fingerprint, vocab_size, *(["trees"] if has_trees else [])]
    path = cache_path(".tokenizer.json", *origins)
    if not path.exists():
        symbols = sorted({symbol for tree in train_text["target"] for symbol in tree.split()}) if has_trees else []
        text = train_text.select_columns("source") if has_trees else train_text
        try:
            trained = train_tokenizer(_sentences(text), vocab_size, symbols=symbols)
        except ValueError as error:
            raise UserError(str(error)) from error
        write_text(path, trained.backend_tokenizer.to_str())
    return wrap_tokenizer(Tokenizer.from_file(str(path)))


def _sentences(rows: Dataset) -> Iterator[str]:
    """Yield the sentences of both sides, with a progress bar."""
    with tqdm(total=len(rows), desc="Training the vocabulary", unit=" pairs") as progress:
        for table in rows.with_format("arrow").iter(PAIRS_AT_A_TIME):
            for side in table.columns:
                yield from (sentence or "" for sentence in side.to_pylist())
            progress.update(len(table))
        progress.set_postfix_str("read, now merging")


def cache_path(suffix: str, *origins: object) -> Path:
    """Return the cache file of a result that depends on `origins`, which must be JSON."""
    key = xxhash.xxh3_128_hexdigest(json.dumps(origins).encode())
    return Path(config.HF_DATASETS_CACHE) / "vaswani" / (key + suffix)
