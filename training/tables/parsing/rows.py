"""The rows of Table 4: those that the paper prints, and the parsers that are trained here."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vaswani.models.trees_vaswani import Tree


@dataclass(frozen=True)
class PaperRow:
    """A row of Table 4: a parser, what it was trained on, and F1 on section 23 of the Wall Street Journal."""

    parser: str
    training: str
    f1: float


PAPER_ROWS = (
    PaperRow("Vinyals & Kaiser et al. (2014)", "WSJ only, discriminative", 88.3),
    PaperRow("Petrov et al. (2006)", "WSJ only, discriminative", 90.4),
    PaperRow("Zhu et al. (2013)", "WSJ only, discriminative", 90.4),
    PaperRow("Dyer et al. (2016)", "WSJ only, discriminative", 91.7),
    PaperRow("Transformer (4 layers)", "WSJ only, discriminative", 91.3),
    PaperRow("Zhu et al. (2013)", "semi-supervised", 91.3),
    PaperRow("Huang & Harper (2009)", "semi-supervised", 91.3),
    PaperRow("McClosky et al. (2006)", "semi-supervised", 92.1),
    PaperRow("Vinyals & Kaiser et al. (2014)", "semi-supervised", 92.1),
    PaperRow("Transformer (4 layers)", "semi-supervised", 92.7),
    PaperRow("Luong et al. (2015)", "multi-task", 93.0),
    PaperRow("Dyer et al. (2016)", "generative", 93.3),
)


@dataclass(frozen=True)
class Row:
    """A parser that is trained here.

    Attributes
    ----------
    share : float
        Of the trees of the training split.
    is_plain : bool
        Whether it is trained on nothing else, and not also on what the recipe makes of their parts.
    """

    share: float
    is_plain: bool = False

    @property
    def name(self) -> str:
        """Such as "12.5%"."""
        return f"{100 * self.share:g}%" + (", nothing made of them" if self.is_plain else "")

    @property
    def folder(self) -> str:
        """Its name as that of a folder."""
        return f"{100 * self.share:g}" + ("-plain" if self.is_plain else "")


def make_rows(shares: Sequence[float], with_plain: bool) -> list[Row]:
    """Return a row for each share, the smallest first; then, if asked for, a plain one of all trees."""
    return [Row(share) for share in sorted(shares)] + [Row(1.0, is_plain=True)] * with_plain


def checksums(splits: dict[str, list[Tree]]) -> dict[str, str]:
    """Hash the trees of each split."""
    return {
        split: hashlib.sha256("".join(f"{tree}\n" for tree in trees).encode()).hexdigest()
        for split, trees in splits.items()
    }


def write_treebank(row: Row, splits: dict[str, list[Tree]], folder: Path, seed: int) -> None:
    """Write the treebank that a row is trained on, unless it is there.

    Parameters
    ----------
    row : Row
    splits : dict of str to list of Tree
        The whole treebank. Smaller shares are parts of larger ones; validation and test stay whole.
    folder : Path
    seed : int
        Of the choice.
    """
    order = np.random.default_rng(seed).permutation(len(splits["train"]))
    train = [splits["train"][number] for number in sorted(order[: round(row.share * len(order))])]
    folder.mkdir(parents=True, exist_ok=True)
    for split, trees in (splits | {"train": train}).items():
        path, text = folder / f"{split}.mrg", "".join(f"{tree}\n" for tree in trees)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
