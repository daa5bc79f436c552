"""From text to encoded pairs (section 5.1): ids, unusable pairs dropped; as memory-mapped Arrow tables.

Results are cached under a hash of their inputs, so that a later run, or another process of this one, finds them ready.
"""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import xxhash
from datasets import Dataset, DatasetDict, Features, List, Value, config
from datasets.exceptions import DatasetGenerationError
from transformers import PreTrainedTokenizerBase

from training.data.batch_plan import Side
from training.data.bpe_dropout import DroppingEncoder
from training.data.corpora import load_text
from training.data.sentence_encoder import SentenceEncoder, description
from training.data.vocabulary import PAIRS_AT_A_TIME, cache_path, load_tokenizer
from training.settings import DataSettings, ModelSettings
from vaswani.errors import UserError
from vaswani.files import write_text
from vaswani.models.trees_vaswani import TREES


DROP_REASONS = ("kept", "empty", "too long", "unbalanced")
ENCODING_VERSION = 1  # in the hash that names a cache, as `VOCABULARY_VERSION` is
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
    path, counted = cache_path(".arrow", *origins), cache_path(".counts.json", *origins)
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


def encode_epoch(
    rows: Dataset, encoder: DroppingEncoder, settings: DataSettings, epoch: int
) -> tuple[Dataset, dict[str, int]]:
    """Encode the pairs of a split as they are divided in an epoch, in memory; returns and raises as `encode`."""
    limits = settings.max_source_length, settings.max_target_length, settings.max_length_ratio
    encoder.start_epoch(epoch)
    usable, totals = [], np.zeros(len(DROP_REASONS), dtype=np.int64)
    for table in rows.with_format("arrow").iter(PAIRS_AT_A_TIME):
        encoded, reasons = encode_table(table, encoder, limits)
        totals += np.bincount(reasons, minlength=len(totals))
        usable.append(encoded.filter(pa.array(reasons == 0)))
    counts = dict(zip(DROP_REASONS, totals.tolist(), strict=True))
    if not counts["kept"]:
        raise UserError(
            f"no usable pair is left in epoch {epoch}, divided with bpe_dropout={settings.bpe_dropout}: "
            f"{describe_counts(counts)}"
        )
    return Dataset(pa.Table.from_batches(usable)), counts


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
