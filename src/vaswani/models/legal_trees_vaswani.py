"""A logits processor that lets a parser write nothing but trees over the words of its sentence.

Axis letters: see `modeling_vaswani.py`.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessor

from .trees_vaswani import APOSTROPHE, PUNCTUATION, SYMBOL


OTHER, OPENER, LEAF, CLOSER = range(4)
PARTS_OF_SPEECH = "parts_of_speech"  # a tokenizer's: {word: those that the training trees have for it}
MAX_OPENERS = 6  # brackets that open one after another; the treebank never has more


class LegalTrees(LogitsProcessor):
    """Rules out every symbol that cannot continue a tree over the words of a sentence.

    A bracket opens while words are left, and closes where it is the innermost and holds something. There is a part of
    speech for each word: punctuation has its own; any other word of the training trees has one of those that it has
    there, as in Collins 1999; a new word has any but those of punctuation. The tree ends when all words are used.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        Of a parser: its added tokens are the symbols, and the dictionary comes with it.
    sentences : sequence of sequence of str
        The words of each of the B sentences.
    tags : sequence of (sequence of str or None), or None, default=None
        Their parts of speech, where these are known.

    Raises
    ------
    ValueError
        If the tokenizer has no symbols, or a part of speech is none of them.
    """

    def __init__(
        self,
        tokenizer: Any,
        sentences: Sequence[Sequence[str]],
        tags: Sequence[Sequence[str] | None] | None = None,
    ):
        self._read_symbols(tokenizer)
        self.end = tokenizer.eos_token_id
        self.dictionary: dict[str, str] = tokenizer.init_kwargs.get(PARTS_OF_SPEECH, {})
        self.counts = torch.tensor([len(words) for words in sentences])
        # Which part of speech may stand at which place of which sentence.
        self.fitting = torch.zeros(len(sentences), int(self.counts.max()), len(self.tags), dtype=torch.bool)
        for row, words in enumerate(sentences):
            given = None if tags is None else tags[row]
            for place, word in enumerate(words):
                wanted = self._fitting(word) if given is None else [self._known(given[place], word)]
                self.fitting[row, place, wanted] = True

    def _read_symbols(self, tokenizer: Any) -> None:
        """Learn what each type of the vocabulary is: its kind, its label, the parts of speech."""
        self.kinds, self.labels = torch.zeros(2, len(tokenizer), dtype=torch.int64)
        labels: dict[str, int] = {}
        leaves: dict[str, int] = {}
        for text, number in tokenizer.get_added_vocab().items():
            leaf, opening, closing, _ = (SYMBOL.findall(text) or [[""] * 4])[0]
            if leaf:
                self.kinds[number], leaves[leaf] = LEAF, number
            elif opening or closing:
                self.kinds[number] = OPENER if opening else CLOSER
                self.labels[number] = labels.setdefault(opening or closing, len(labels) + 1)
        if not leaves:
            raise ValueError("the tokenizer has no symbols of trees: the model must be a parser")
        self.tags, self.leaves = list(leaves), torch.tensor(list(leaves.values()))

    def _fitting(self, word: str) -> list[int]:
        """Return the numbers of the parts of speech that a word may have."""
        if PUNCTUATION.get(word) in self.tags:
            return [self.tags.index(PUNCTUATION[word])]
        known = [self.tags.index(tag) for tag in self.dictionary.get(word, "").split() if tag in self.tags]
        if known:
            return known
        others = [number for number, tag in enumerate(self.tags) if tag not in PUNCTUATION.values()]
        return others if others and word != APOSTROPHE else list(range(len(self.tags)))

    def _known(self, tag: str, word: str) -> int:
        """Return the number of a part of speech."""
        if tag not in self.tags:
            raise ValueError(
                f"the part of speech {tag!r} of {word!r} must be one that the model knows: "
                f"{', '.join(sorted(self.tags))}"
            )
        return self.tags.index(tag)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the (R, V) scores of what follows the (R, T) ids, -inf where it is not legal."""
        legal = self.legal(input_ids.cpu()).to(scores.device)
        return scores.masked_fill(~legal, -math.inf)

    def legal(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Tell which of V symbols may follow each of the (R, T) hypotheses: (R, V)."""
        sentence = torch.arange(len(self.counts)).repeat_interleave(len(input_ids) // len(self.counts))
        kinds = self.kinds[input_ids]
        depths = ((kinds == OPENER).int() - (kinds == CLOSER).int()).cumsum(1)
        depth, used = depths[:, -1:], (kinds == LEAF).sum(1, keepdim=True)
        is_left = used < self.counts[sentence, None]
        # The innermost bracket is the last that opened to the present depth.
        position = torch.arange(input_ids.shape[1])
        innermost = torch.where((kinds == OPENER) & (depths == depth), position, -1).amax(1, keepdim=True)
        label = self.labels[input_ids.gather(1, innermost.clamp(min=0))]
        since = position[-1] - torch.where(kinds != OPENER, position, -1).amax(1, keepdim=True)

        is_new = (depth == 0) & (used == 0)
        opens = is_left & ((depth > 0) | is_new) & (since < MAX_OPENERS)
        takes_word = is_left & ((depth > 0) | (is_new & (self.counts[sentence, None] == 1)))
        closes = (depth > 0) & (kinds[:, -1:] != OPENER) & ((depth > 1) | ~is_left)
        words = self.fitting[sentence, used[:, 0].clamp(max=self.fitting.shape[1] - 1)]
        legal = (self.kinds == OPENER) & opens
        legal[:, self.leaves] = words & takes_word
        legal |= (self.kinds == CLOSER) & (self.labels == label) & closes
        legal[:, self.end] = ((depth == 0) & ~is_left)[:, 0]
        return legal


__all__ = ["LegalTrees"]
