"""Prepare parallel text as for many published results: Moses' tokens, and a byte-pair encoding of words on them.

python training/preprocess.py --dataset_name ../shared/data/multi30k --dataset_config_name en-de
    --source_lang en --target_lang de --lowercase --num_merges 10000 --output runs/multi30k-moses
python training/preprocess.py --help

Punctuation is normalized, tokens are set apart and special characters escaped, as by Moses' scripts (sacremoses). The
merges are those of `subword-nmt learn-bpe` on both sides of the training text together. The folder holds the tokenized
text, a file for each split and language; bpe.codes, which subword-nmt applies; and tokenizer/, which does the same in
transformers. A run takes all of it: --train_file, --tokenizer_name and --tokenized.

Our own way is another one: raw text and a vocabulary of bytes, without any preparation.
"""

import argparse
import sys
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from datasets import Dataset
from sacremoses import MosesPunctNormalizer
from tqdm.auto import tqdm

from training.data.corpora import load_text
from training.data.word_bpe import learn_codes, word_tokenizer
from training.settings import DataSettings
from vaswani.cli import Parser, exit_status
from vaswani.cli.shared.flags import at_least_one
from vaswani.errors import UserError
from vaswani.files import check_is_new, new_folder
from vaswani.scoring.protocols import check_language, code_of, tokenize
from vaswani.workers import CAN_FORK, Pool, usable_cores


PAIRS_OF_A_TASK = 1000  # what a worker does at a time; a split of as many is done in this process


def main(arguments: list[str]) -> None:
    """Read the text, tokenize it, learn the merges, and write it all at once."""
    options = read_flags(arguments)
    check_is_new(options.output)
    settings = data_settings(options)
    languages = options.source_lang, options.target_lang
    try:
        for language, setting in zip(languages, ("source_lang", "target_lang"), strict=True):
            check_language(language, setting)
    except ValueError as error:
        raise UserError(str(error)) from error
    with new_folder(options.output) as folder:
        raw = load_text(settings, folder)
        splits = {
            split: tokenize_split(rows, languages, options.lowercase, f"Tokenizing {split}")
            for split, rows in raw.items()
        }
        for split, sides in splits.items():
            for language, side in zip(languages, ("source", "target"), strict=True):
                write_lines(folder / f"{split}.{language}", sides[side])
        train = [*splits["train"]["source"], *splits["train"]["target"]]
        codes = learn_codes(train, options.num_merges)
        (folder / "bpe.codes").write_text(codes, encoding="utf-8")
        tokenizer = word_tokenizer(
            codes, {character for sentence in train for character in sentence if character != " "}
        )
        tokenizer.save_pretrained(folder / "tokenizer")
    types = {number for ids in tokenizer(train).input_ids for number in ids}
    print(f"{', '.join(f'{len(rows):,} {split}' for split, rows in raw.items())} pairs in {options.output}")
    print(f"{len(types) - 1:,} types of {len(tokenizer):,} occur in the training text, and </s>")


def read_flags(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(prog="training/preprocess.py", description=__doc__)
    for name in ("dataset_name", "dataset_config_name"):
        parser.add_argument(f"--{name}", help="as of training/run.py")
    for name in ("train_file", "validation_file", "test_file"):
        parser.add_argument(f"--{name}", nargs="+", help="as of training/run.py")
    for name in ("source_lang", "target_lang"):
        parser.add_argument(f"--{name}", required=True, help="a language that Moses' tokenizer knows")
    parser.add_argument("--lowercase", action="store_true", help="make all text lowercase first")
    parser.add_argument(
        "--num_merges", type=at_least_one, required=True, metavar="N", help="pairs of symbols to merge"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="a folder that does not exist yet")
    return parser.parse_args(arguments)


def data_settings(options: argparse.Namespace) -> DataSettings:
    """Return what the flags say of the text.

    Raises
    ------
    UserError
        If they do not go together.
    """
    names = "dataset_name", "dataset_config_name", "train_file", "validation_file", "test_file"
    given = {name: getattr(options, name) for name in (*names, "source_lang", "target_lang")}
    settings = DataSettings(**given)
    settings.validate()
    return settings


def tokenize_split(rows: Dataset, languages: tuple[str, str], lowercase: bool, desc: str) -> dict[str, list[str]]:
    """Tokenize both sides of a split, with all cores; a small split in this process."""
    starts = range(0, len(rows), PAIRS_OF_A_TASK)
    parts: list[dict[str, list[str]]] = [{}] * len(starts)
    workers = usable_cores() if CAN_FORK else 1
    with (
        Pool(partial(tokenize_pairs, rows, languages, lowercase), workers) as pool,
        tqdm(total=len(rows), desc=desc, unit=" pairs") as progress,
    ):
        for number, part in pool.run(starts):
            parts[number] = part
            progress.update(len(part["source"]))
    return {side: [sentence for part in parts for sentence in part[side]] for side in ("source", "target")}


def tokenize_pairs(rows: Dataset, languages: tuple[str, str], lowercase: bool, start: int) -> dict[str, list[str]]:
    """Tokenize the pairs of a task, each side by the rules of its language."""
    batch = rows[start : start + PAIRS_OF_A_TASK]
    return {
        side: [tokenize_as_moses(sentence or "", language, lowercase) for sentence in batch[side]]
        for side, language in zip(("source", "target"), languages, strict=True)
    }


def tokenize_as_moses(sentence: str, language: str, lowercase: bool = False) -> str:
    """Return a sentence as `normalize-punctuation.perl` and `tokenizer.perl` leave it, perhaps lowercased first."""
    sentence = sentence.lower() if lowercase else sentence
    return tokenize(_normalizer(code_of(language)).normalize(sentence), language)


@lru_cache
def _normalizer(language: str) -> Any:
    return MosesPunctNormalizer(language)


def write_lines(path: Path, sentences: list[str]) -> None:
    """Write a sentence a line."""
    path.write_bytes("".join(f"{sentence}\n" for sentence in sentences).encode())


if __name__ == "__main__":
    sys.exit(exit_status(lambda: main(sys.argv[1:])))
