"""The shortlist of a model: which tokens the translations of a batch may be made of, as a file of the model's folder.

What it rules out cannot be written, so it changes translations, and is used on demand only. In return the output layer
shrinks to the tokens that it allows: by nine tenths and more.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers.utils import cached_file

from vaswani.errors import UserError
from vaswani.files import whole_file

from .alignment import Pairs, Translations, best_translations


FILE = "shortlist.safetensors"
FORMAT = "vaswani shortlist 1"
MULTIPLE = 8  # of which the number of allowed tokens is one: matrix products are faster so
LOOKED_AT = 1000  # pairs, to say what a shortlist allows
COMMAND = "vaswani shortlist --model {} --source FILE --target FILE"


@dataclass(frozen=True)
class Shortlist:
    """Likely translations of each source type, and the most frequent types of the target language.

    Attributes
    ----------
    candidates : Tensor of shape (V, C)
        Ids of the likely translations of each source type, the best first; -1 where there are no more.
    by_frequency : Tensor of shape (N,)
        All types of the target language's text, ``</s>`` and then the most frequent first.
    frequent : int
        How many of these are allowed in every batch.
    vocabulary : str
        The fingerprint of the vocabulary that the ids are of.
    """

    candidates: torch.Tensor
    by_frequency: torch.Tensor
    frequent: int
    vocabulary: str

    @classmethod
    def build(
        cls, tokenizer: Any, table: Translations, counts: torch.Tensor, per_source: int, frequent: int
    ) -> "Shortlist":
        """Make a shortlist of p(t | s) and of how often each of V types stands in the targets."""
        order = counts.argsort(descending=True, stable=True)
        order = order[(counts[order] > 0) & (order != tokenizer.eos_token_id)]
        by_frequency = torch.cat([order.new_tensor([tokenizer.eos_token_id]), order]).int()
        candidates = best_translations(table, len(tokenizer), per_source)
        return cls(candidates, by_frequency, frequent, fingerprint(tokenizer))

    @classmethod
    def load(cls, model: str, tokenizer: Any) -> "Shortlist":
        """Load the shortlist of a model folder, or of a model on the Hub.

        Raises
        ------
        UserError
            If there is none, it is damaged, or it was made for another vocabulary than the tokenizer's.
        """
        path = cached_file(
            model, FILE, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False
        )
        if path is None:
            raise UserError(
                f"model={model!r} has no {FILE}, which --shortlist needs: {COMMAND.format(model)} makes it"
            )
        try:
            shortlist, form = cls._read(path)
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} is damaged, make it again by {COMMAND.format(model)}: {error}") from error
        if form != FORMAT:
            raise UserError(f"{path} has the format {form!r}, but must have {FORMAT!r}")
        if (len(shortlist.candidates), shortlist.vocabulary) != (len(tokenizer), fingerprint(tokenizer)):
            raise UserError(
                f"{path} was made for another vocabulary, of {len(shortlist.candidates):,} types, than the "
                f"tokenizer's of {len(tokenizer):,}: make it again by {COMMAND.format(model)}"
            )
        return shortlist

    @classmethod
    def _read(cls, path: str) -> tuple["Shortlist", str]:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            tensors = [file.get_tensor(name) for name in ("candidates", "by_frequency")]
        if [tensor.dim() for tensor in tensors] != [2, 1] or any(tensor.is_floating_point() for tensor in tensors):
            raise ValueError("its tensors have other shapes or types than a shortlist's")
        if any(len(tensor) and int(tensor.max()) >= len(tensors[0]) for tensor in tensors):
            raise ValueError("it names types beyond its vocabulary")
        return cls(*tensors, int(about["frequent"]), about["vocabulary"]), about["format"]

    def save(self, folder: str | Path) -> Path:
        """Write the file into a model folder, whole or not at all.

        Raises
        ------
        OSError, SafetensorError
            If it cannot be written, as on a full disk; what was there before is untouched.
        """
        path = Path(folder) / FILE
        about = {"format": FORMAT, "frequent": str(self.frequent), "vocabulary": self.vocabulary}
        tensors = {"candidates": self.candidates, "by_frequency": self.by_frequency}
        with whole_file(path) as unfinished:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, unfinished, metadata=about)
        return path

    def allowed(self, sources: Iterable[Sequence[int]]) -> torch.Tensor:
        """Return the ids of the tokens that the translations of some sentences may be made of.

        These are the candidates of all their tokens, the tokens themselves, as names and numbers are copied, and the
        most frequent types; then the next frequent, up to a multiple of 8.

        Parameters
        ----------
        sources : iterable of sequence of int
            Their ids, without padding.

        Returns
        -------
        Tensor of shape (N,)
            In ascending order.
        """
        tokens = torch.tensor(sorted({int(token) for source in sources for token in source}), dtype=torch.int64)
        parts = [self.candidates[tokens].flatten(), tokens, self.by_frequency[: self.frequent]]
        ids = torch.cat([part.long() for part in parts]).unique()
        ids = ids[ids >= 0]
        others = self.by_frequency[~torch.isin(self.by_frequency, ids)].long()
        return torch.cat([ids, others[: -len(ids) % MULTIPLE]]).sort().values

    def coverage(self, pairs: Pairs) -> tuple[float, float]:
        """Return the share of target tokens that may be written, and how many types may be, a sentence at a time.

        The first 1,000 pairs are looked at.
        """
        sources, targets = (
            ids[: int(lengths[:LOOKED_AT].sum())].split(lengths[:LOOKED_AT].tolist())
            for ids, lengths in ((pairs.source_ids, pairs.source_lengths), (pairs.target_ids, pairs.target_lengths))
        )
        found, types = 0, 0
        for source, target in zip(sources, targets, strict=True):
            ids = self.allowed([source.tolist()])
            found, types = found + int(torch.isin(target, ids).sum()), types + len(ids)
        return found / sum(map(len, targets)), types / len(targets)


def fingerprint(tokenizer: Any) -> str:
    """Return a checksum of a vocabulary: equal where all types have equal ids."""
    return hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()
