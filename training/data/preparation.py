"""From text to encoded pairs (section 5.1): vocabulary, ids, unusable pairs dropped; as memory-mapped Arrow tables.

Results are cached under a hash of their inputs, so that a later run, or another process of this one, finds them ready.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import xxhash
from datasets import Dataset, DatasetDict, Features, List, Value, config
from datasets.exceptions import DatasetGenerationError
from tokenizers import Tokenizer
from tqdm.auto import tqdm
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from training.data.batch_plan import Side
from training.data.bpe_dropout import DroppingEncoder
from training.data.corpora import load_text
from training.data.sentence_encoder import SentenceEncoder, description
from training.settings import DataSettings, ModelSettings
from vaswani.errors import UserError, first_line
from vaswani.files import write_text
from vaswani.models.legal_trees_vaswani import PARTS_OF_SPEECH
from vaswani.models.trees_vaswani import TREES
from vaswani.tokenization import train_tokenizer, wrap_tokenizer


DROP_REASONS = ("kept", "empty", "too long", "unbalanced")
PAIRS_AT_A_TIME = 5000
DICTIONARY_WORDS = 50_000  # whose parts of speech a parser's tokenizer knows: all of the Penn Treebank's

# Part of the hash that names a cache: raise it when the same text and settings would give another result.
VOCABULARY_VERSION = 1
ENCODING_VERSION = 1

FEATURES = Features(
    input_ids=List(Value("int32")),
    labels=List(Value("int32")),
    source_length=Value("int32"),
    target_length=Value("int32"),
)


class Prepared(NamedTuple):
    """All data of a run: every split as text and as encoded pairs, and how many were dropped for which reason."""

    text: DatasetDict
    tokenizer: PreTrainedTokenizerBase
    encoded: DatasetDict
    counts: dict[str, dict[str, int]]


def prepare(data: DataSettings, model: ModelSettings, grammar_folder: Path) -> Prepared:
    """Read the text, load or train the tokenizer, and encode all splits; cached results are taken from the cache.

    Raises
    ------
    UserError
        If data or tokenizer are missing or unfit, or the cache cannot be written.
    """
    try:
        text = load_text(data, grammar_folder)
        tokenizer = load_tokenizer(model, text["train"], data.target_lang == TREES)
        encoded, counts = DatasetDict(), {}
        for split, rows in text.items():
            encoded[split], counts[split] = encode(rows, tokenizer, data, split)
    except (OSError, DatasetGenerationError) as error:
        cache = config.HF_DATASETS_CACHE
        raise UserError(f"the data cannot be prepared in {cache}: {error.__cause__ or error}") from error
    return Prepared(text, tokenizer, encoded, counts)


def _cache_path(suffix: str, *origins: object) -> Path:
    """Return the cache file of a result that depends on `origins`, which must be JSON."""
    key = xxhash.xxh3_128_hexdigest(json.dumps(origins).encode())
    return Path(config.HF_DATASETS_CACHE) / "vaswani" / (key + suffix)


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
        if has_trees and not tokenizer.is_fast:
            raise UserError(f"{field}={name!r} is a {type(tokenizer).__name__}: a parser's must have a tokenizer.json")
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
    path = _cache_path(".parts_of_speech.json", train_text._fingerprint)
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
        Naming the setting, if there is none, or it lacks ``</s>`` or ``<pad>``.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except Exception as error:  # the library raises half a dozen kinds
        raise UserError(f"{field}={name!r} has no tokenizer that can be loaded: {first_line(error)}") from error
    if tokenizer.eos_token_id is None or tokenizer.pad_token_id is None:
        raise UserError(f"{field}={name!r} must have an end-of-sentence and a padding token")
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
    path = _cache_path(".tokenizer.json", *origins)
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


def encode(
    rows: Dataset, tokenizer: PreTrainedTokenizerBase, settings: DataSettings, split: str
) -> tuple[Dataset, dict[str, int]]:
    """Encode the pairs of a split, and drop the unusable ones.

    Parameters
    ----------
    rows : Dataset
        Columns `source` and `target`.
    tokenizer : PreTrainedTokenizerBase
    settings : DataSettings
        Gives the limits.
    split : str
        Its name, for messages.

    Returns
    -------
    encoded : Dataset
        The usable pairs: columns `input_ids` and `labels` (each ending in ``</s>``), `source_length`, `target_length`.
    counts : dict of str to int
        Pairs per entry of `DROP_REASONS`.

    Raises
    ------
    UserError
        If there is no pair, or no usable one.
    """
    limits = settings.max_source_length, settings.max_target_length, settings.max_length_ratio
    encoder = SentenceEncoder(tokenizer)
    origins = ENCODING_VERSION, rows._fingerprint, description(tokenizer), tokenizer.split_special_tokens, limits
    path, counted = _cache_path(".arrow", *origins), _cache_path(".counts.json", *origins)
    totals = np.zeros(len(DROP_REASONS), dtype=np.int64)

    def encode_and_count(table: pa.Table) -> pa.Table:
        encoded, reasons = encode_table(table, encoder, limits)
        totals[:] += np.bincount(reasons, minlength=len(totals))
        return pa.Table.from_batches([encoded.filter(pa.array(reasons == 0))])  # one chunk, even if nothing is left

    if not len(rows):
        raise UserError(f"there is no pair in {split}")
    encoded = rows.with_format("arrow").map(
        encode_and_count,
        batched=True,
        batch_size=PAIRS_AT_A_TIME,
        writer_batch_size=PAIRS_AT_A_TIME,
        remove_columns=rows.column_names,
        features=FEATURES,
        cache_file_name=str(path),
        new_fingerprint=path.stem,
        load_from_cache_file=counted.exists(),  # it is written last, so the pairs are complete
        desc=f"Encoding {split}",
    )
    if totals.any():
        write_text(counted, json.dumps(dict(zip(DROP_REASONS, totals.tolist(), strict=True))))
    counts = json.loads(counted.read_text(encoding="utf-8"))
    if not counts["kept"]:
        raise UserError(f"no usable pair is left of {len(rows):,} in {split}: {describe_counts(counts)}")
    return encoded.with_format(None), counts


def encode_epoch(rows: Dataset, encoder: DroppingEncoder, settings: DataSettings, epoch: int) -> Dataset:
    """Encode the pairs of a split as they are divided in an epoch, in memory; columns as of `encode`."""
    limits = settings.max_source_length, settings.max_target_length, settings.max_length_ratio
    encoder.start_epoch(epoch)
    usable = []
    for table in rows.with_format("arrow").iter(PAIRS_AT_A_TIME):
        encoded, reasons = encode_table(table, encoder, limits)
        usable.append(encoded.filter(pa.array(reasons == 0)))
    return Dataset(pa.Table.from_batches(usable))


def encode_table(
    table: pa.Table, encoder: SentenceEncoder | DroppingEncoder, limits: tuple[int, int, float]
) -> tuple[pa.RecordBatch, np.ndarray]:
    """Encode pairs, and tell which ones to drop.

    Parameters
    ----------
    table : Table
        Columns `source` and `target`.
    encoder : SentenceEncoder or DroppingEncoder
    limits : tuple
        The last three arguments of `drop_reasons`.

    Returns
    -------
    encoded : RecordBatch
        All pairs, with the columns of `FEATURES`.
    reasons : ndarray of shape (N,)
        As `drop_reasons` returns them.
    """
    sides = [[sentence or "" for sentence in table[side].to_pylist()] for side in ("source", "target")]
    encoded = [encoder(sides[0]), encoder(sides[1], is_target=True)]
    columns = [
        pa.ListArray.from_arrays(np.append(np.int32(0), np.cumsum(n, dtype=np.int32)), ids) for ids, n in encoded
    ]
    lengths = [n for _, n in encoded]
    columns += map(pa.array, lengths)
    empty = np.array([not (source.strip() and target.strip()) for source, target in zip(*sides, strict=True)])
    return pa.record_batch(columns, names=list(FEATURES)), drop_reasons(*lengths, empty, *limits)


def drop_reasons(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    empty: np.ndarray,
    max_source_length: int,
    max_target_length: int,
    max_length_ratio: float,
) -> np.ndarray:
    """Return for each pair the first reason to drop it, as an index into `DROP_REASONS`; 0 keeps it.

    Lengths count ``</s>``; the ratio is of the tokens before it.
    """
    longer = np.maximum(source_lengths, target_lengths) - 1
    shorter = np.minimum(source_lengths, target_lengths) - 1
    return np.select(
        [
            empty,
            (source_lengths > max_source_length) | (target_lengths > max_target_length),
            longer > max_length_ratio * shorter,
        ],
        [1, 2, 3],
        0,
    ).astype(np.int8)


def describe_counts(counts: dict[str, int]) -> str:
    """Return the numbers of kept and dropped pairs in words, such as ``9 kept, 1 empty``."""
    return ", ".join(f"{count:,} {reason}" for reason, count in counts.items())


def lengths(encoded: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths of all sources and of all targets, two (N,) arrays of int32."""
    table = encoded.with_format("arrow")[:]
    return table["source_length"].to_numpy(), table["target_length"].to_numpy()


def read_pairs(encoded: Dataset, indices: np.ndarray) -> tuple[Side, Side]:
    """Read pairs, in the order of `indices`, of a dataset in the format "arrow": their sources and their targets."""
    table = encoded[indices]
    sides = (table[name].combine_chunks() for name in ("input_ids", "labels"))
    source, target = (Side(side.flatten().to_numpy(), side.value_lengths().to_numpy()) for side in sides)
    return source, target


def fingerprint(encoded: Dataset) -> str:
    """Hash the ids and lengths of all pairs, however they are stored."""
    digests = {name: xxhash.xxh3_128() for name in FEATURES}
    for table in encoded.with_format("arrow").iter(PAIRS_AT_A_TIME):
        for name, digest in digests.items():
            for chunk in table[name].chunks:
                digest.update((chunk.flatten() if pa.types.is_list(chunk.type) else chunk).to_numpy())
    return xxhash.xxh3_128_hexdigest(b"".join(digest.digest() for digest in digests.values()))
