"""Parallel text of a run: from the Hub, a local folder, one's own files or the grammar, as memory-mapped Arrow tables.

Errors in the text are found here, before training starts. The corpus is never a Python list.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from datasets import Dataset, DatasetDict

from training.data.grammar.corpus import write_corpus
from training.settings import DataSettings
from vaswani.text import hub
from vaswani.text.parallel import read_files


SPLITS = ("train", "validation", "test")
GRAMMAR = "grammar"  # the dataset that this project generates


def load_text(settings: DataSettings, grammar_folder: Path) -> DatasetDict:
    """Read the parallel text of all splits, as columns `source` and `target`.

    Parameters
    ----------
    settings : DataSettings
    grammar_folder : Path
        Where the grammar writes its corpus, if that is the dataset.

    Returns
    -------
    DatasetDict
        With "train", "validation" and, where there is one, "test".

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
    if any(files.values()):
        raw = {split: read_files(paths, languages) for split, paths in files.items() if paths}
    else:
        loaded = hub.load_dataset(settings.dataset_name, settings.dataset_config_name)
        hub.require_splits(loaded, SPLITS[:2], settings.dataset_name)
        raw = {split: loaded[split] for split in SPLITS if split in loaded}
    limits = dict.fromkeys(SPLITS, settings.max_eval_samples) | {"train": settings.max_train_samples}
    splits = DatasetDict()
    for split, rows in raw.items():
        rows = rows if limits[split] is None else rows.select(range(min(limits[split], len(rows))))
        splits[split] = hub.as_source_and_target(rows, split, languages)
    return splits


def load_split(name: str, config: str | None, split: str, languages: tuple[str, str]) -> Dataset:
    """Read one split of a dataset, or of the grammar, as columns `source` and `target`.

    Raises
    ------
    UserError
        If the dataset, configuration, split or a language is missing.
    """
    if name != GRAMMAR:
        return hub.load_split(name, config, split, languages)
    hub.require_splits(SPLITS, [split], name)
    with TemporaryDirectory() as folder:
        rows = read_files([str(write_corpus(Path(folder)) / f"{split}.tsv")], languages)
        return hub.as_source_and_target(rows, split, languages)
