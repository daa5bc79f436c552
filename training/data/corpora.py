"""Parallel text of a run: from the Hub, a local folder, one's own files or the grammar, as memory-mapped Arrow tables.

Errors in the text are found here, before training starts. The corpus is never a Python list.
"""

from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory

from datasets import Dataset, DatasetDict

from training.data.grammar.corpus import write_corpus
from training.data.substitution import parts, substituted
from training.settings import GRAMMAR, DataSettings
from vaswani.errors import UserError
from vaswani.parsing.splits import as_row, load_treebank
from vaswani.parsing.splits import load_split as load_other_split
from vaswani.parsing.treebank import PREFIX, find_files, read_trees
from vaswani.text import hub
from vaswani.text.parallel import build, read_files


SPLITS = ("train", "validation", "test")


def load_text(settings: DataSettings, grammar_folder: Path) -> DatasetDict:
    """Read the parallel text of "train", "validation" and, if there is one, "test", as columns `source` and `target`.

    The grammar, if that is the dataset, writes its corpus to `grammar_folder`.

    Raises
    ------
    UserError
        If a dataset, configuration, split, language or file is missing or cannot be read.
    """
    languages = settings.source_lang, settings.target_lang
    if settings.dataset_name == GRAMMAR:
        corpus = write_corpus(grammar_folder)
        files = {split: [str(corpus / f"{split}.tsv")] for split in SPLITS}
    else:
        files = {split: getattr(settings, f"{split}_file") for split in SPLITS}
    if str(settings.dataset_name).startswith(PREFIX):
        raw = load_treebank(str(settings.dataset_name), languages)
        if settings.treebank_parts or settings.treebank_made:
            raw["train"] = _enlarge_treebank(settings, languages)
    elif any(files.values()):
        raw = {split: read_files(paths, languages) for split, paths in files.items() if paths}
    else:
        loaded = hub.load_dataset(settings.dataset_name, settings.dataset_config_name)
        hub.require_splits(loaded, SPLITS[:2], settings.dataset_name)
        raw = {split: loaded[split] for split in SPLITS if split in loaded}
    limits = dict.fromkeys(SPLITS, settings.max_eval_samples)
    limits["train"] = None if settings.treebank_parts or settings.treebank_made else settings.max_train_samples
    splits = DatasetDict()
    for split, rows in raw.items():
        rows = rows if limits[split] is None else rows.select(range(min(limits[split], len(rows))))
        splits[split] = hub.as_source_and_target(rows, split, languages)
    return splits


def _enlarge_treebank(settings: DataSettings, languages: tuple[str, str]) -> Dataset:
    """Read the training trees, or as many as are to be used, with trees made of their parts behind them."""
    files = find_files(str(settings.dataset_name).removeprefix(PREFIX))["train"]
    limits = settings.max_train_samples, settings.treebank_parts or 0, settings.treebank_made or 0
    return build(partial(_enlarged_rows, limits), list(map(str, files)), languages)


def _enlarged_rows(
    limits: tuple[int | None, int, int], paths: list[str], languages: tuple[str, str]
) -> Iterator[dict[str, str]]:
    used, part_words, made = limits
    trees = list(islice((tree for path in paths for tree in read_trees(path)), used))
    for tree in chain(trees, parts(trees, part_words), substituted(trees, made)):
        yield as_row(tree, languages)


def load_split(name: str, config: str | None, split: str, languages: tuple[str, str]) -> Dataset:
    """Read one split of a dataset, or of the grammar, as columns `source` and `target`.

    Raises
    ------
    UserError
        If the dataset, configuration, split or a language is missing, or the grammar is to have a configuration.
    """
    if name != GRAMMAR:
        return load_other_split(name, config, split, languages)
    if config is not None:
        raise UserError(
            f"dataset_config_name={config!r} is for other datasets, but dataset_name={name!r} is the grammar"
        )
    hub.require_splits(SPLITS, [split], name)
    with TemporaryDirectory() as folder:
        # The other splits are the same beside a short one for training, which is written in no time.
        corpus = write_corpus(Path(folder)) if split == "train" else write_corpus(Path(folder), train=1)
        rows = read_files([str(corpus / f"{split}.tsv")], languages)
        return hub.as_source_and_target(rows, split, languages)
