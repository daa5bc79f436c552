"""Which text is evaluated on: a split of a dataset or aligned files, counted where a name says how long it must be."""

from pathlib import Path
from typing import NamedTuple

from datasets import Dataset

from training.data.corpora import load_split
from training.settings import TrainingSettings
from vaswani.errors import UserError
from vaswani.text.parallel import read_lines


# The sets of section 6.1: the one on which choices were made, and the one that is reported.
NEWSTEST = {"newstest2013": 3000, "newstest2014": 3003}
WMT14_SPLITS = {"validation": "newstest2013", "test": "newstest2014"}
FILTERED_NEWSTEST2014 = 2737


class TestSet(NamedTuple):
    """Sentences to score against, what they are translations of where that is known, and their name."""

    __test__ = False  # it is no test of pytest's

    name: str
    split: str
    sources: list[str] | None
    references: list[str]

    def as_dataset(self) -> Dataset:
        """Return the pairs as a table of `source` and `target`."""
        return Dataset.from_dict({"source": self.sources, "target": self.references})


def read_test_set(
    source: str | None, reference: str | None, dataset: TrainingSettings, split: str, samples: int | None = None
) -> TestSet:
    """Read the text to evaluate on.

    Parameters
    ----------
    source, reference : str or None
        Two aligned files; the first may be missing where there are translations already.
    dataset : TrainingSettings
        Its dataset and languages, which are read where there is no `reference`.
    split : str
        Of the dataset.
    samples : int or None, default=None
        Read only so many.

    Raises
    ------
    UserError
        If there is neither, something is missing, empty or not UTF-8, or the numbers of lines differ.
    """
    if (reference is None) == (dataset.dataset_name is None):
        raise UserError("exactly one of reference and dataset_name must be given: what is scored against?")
    if reference is None:
        rows = load_split(dataset, split)
        columns = ([sentence or "" for sentence in rows[side][:samples]] for side in ("source", "target"))
        config = f" ({dataset.dataset_config_name})" if dataset.dataset_config_name else ""
        return TestSet(f"{Path(dataset.dataset_name or '').name}{config}", split, *columns)
    references = read_lines(reference)[:samples]
    if not references:
        raise UserError(f"the reference {reference} is empty: it must hold a sentence a line")
    sources = None if source is None else read_lines(source)[:samples]
    if sources is not None:
        require_equal(source, sources, reference, references)
    return TestSet(Path(reference).name, "test", sources, references)


def read_hypotheses(path: str, test_set: TestSet) -> list[str]:
    """Read translations of a test set.

    Raises
    ------
    UserError
        If the file is missing, empty, not UTF-8, or has another number of lines.
    """
    hypotheses = read_lines(path)
    if not hypotheses:
        lines = len(test_set.references)
        raise UserError(f"the hypothesis file {path} is empty: it must hold a line for each of {lines:,} references")
    require_equal(path, hypotheses, test_set.name, test_set.references)
    return hypotheses


def require_equal(name: str | None, lines: list[str], other_name: str, other_lines: list[str]) -> None:
    """Refuse files of unequal length.

    Raises
    ------
    UserError
        Naming both and their numbers of lines.
    """
    if len(lines) != len(other_lines):
        raise UserError(
            f"{name} has {len(lines):,} lines but {other_name} has {len(other_lines):,}: the numbers must be equal"
        )


def wrong_size(test_set: TestSet) -> str | None:
    """Say in a sentence if a test set is not the one that its name or size makes one think of."""
    lines, name = len(test_set.references), test_set.name
    if name.split(" ")[0].lower() == "wmt14":
        name = WMT14_SPLITS.get(test_set.split, name)
    for newstest, expected in NEWSTEST.items():
        if newstest in name.lower() and lines not in (expected, FILTERED_NEWSTEST2014):
            return f"{newstest} has {expected:,} lines, but this has {lines:,}: scores do not compare with others'"
    if lines == FILTERED_NEWSTEST2014:
        return (
            f"{lines:,} lines are the filtered newstest2014 (sacreBLEU's wmt14), another test set than the paper's "
            f"{NEWSTEST['newstest2014']:,} lines (wmt14/full): their scores do not compare"
        )
    return None
