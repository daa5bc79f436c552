"""BPE-dropout (Provilkov et al. 2020, arXiv 1910.13267): words are divided differently, as merges are left out."""

import json
import random
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise

import numpy as np
from transformers import PreTrainedTokenizerBase

from training.data.sentence_encoder import MAX_WORDS, encodes_words_apart, gather, number_words
from vaswani.errors import UserError


DIVISIONS = 64  # of a word, among which each of its occurrences draws


class DroppingEncoder:
    """Encodes sentences as `SentenceEncoder` does, but with merges left out at random.

    A word is divided in at most 64 ways, each a pure function of the word and its number; each occurrence of the word
    draws one. So the ids of an epoch are a pure function of text, seed and epoch.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        A byte-pair encoding that encodes words apart: of `vaswani.tokenization` or of `word_bpe`.
    dropout : float
        Probability of leaving out a merge that could be done, each time: 0.1 in their experiments.
    seed : int

    Raises
    ------
    UserError
        If the tokenizer is of another kind.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, dropout: float, seed: int):
        if not tokenizer.is_fast or not encodes_words_apart(tokenizer):
            raise UserError(
                f"bpe_dropout={dropout} needs a tokenizer that divides text into words and these by merges, as those "
                f"that a run or training/preprocess.py trains, not this {type(tokenizer).__name__}"
            )
        backend = tokenizer.backend_tokenizer
        self.normalizer, self.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
        model = json.loads(backend.to_str())["model"]
        self.vocabulary, self.unknown = model["vocab"], model["vocab"].get(model["unk_token"])
        self.ranks = {(left, right): rank for rank, (left, right) in enumerate(model["merges"])}
        self.suffix = model["end_of_word_suffix"] or ""
        self.end, self.dropout, self.seed = tokenizer.eos_token_id, dropout, seed
        self.generator = np.random.default_rng(seed)
        self._forget()

    def start_epoch(self, epoch: int) -> None:
        """Draw as in this epoch from here on."""
        self.generator = np.random.default_rng([self.seed, epoch])

    def _forget(self) -> None:
        # entries[w, d] is the number of word w's division d in the pool (see `gather`), or -1 until it is drawn.
        # Word 0 is </s>: all its divisions are entry 0.
        self.numbers: dict[str, int] = {}
        self.entries = np.zeros((1, DIVISIONS), dtype=np.int32)
        self.pool, self.sizes = np.array([self.end], dtype=np.int32), np.array([1], dtype=np.int32)

    def __call__(self, sentences: Sequence[str], is_target: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Encode sentences; the ids of all of them, one after another, and how many each has, (N,) int32."""
        words, starts = self._number_words(sentences)
        draws = self.generator.integers(0, DIVISIONS, len(words))
        new = np.unique((words * DIVISIONS + draws)[self.entries[words, draws] < 0])
        known = list(self.numbers)
        divisions = [self._divide(known[word - 1], draw) for word, draw in zip(*divmod(new, DIVISIONS), strict=True)]
        self.entries.reshape(-1)[new] = np.arange(len(self.sizes), len(self.sizes) + len(new))
        self.sizes = np.append(self.sizes, np.fromiter(map(len, divisions), np.int32, len(new)))
        self.pool = np.append(self.pool, np.fromiter(chain.from_iterable(divisions), np.int32))
        ids, lengths = gather(self.pool, self.sizes, self.entries[words, draws])
        return ids, np.add.reduceat(lengths, starts)

    def _number_words(self, sentences: Sequence[str]) -> tuple[np.ndarray, list[int]]:
        """Return the numbers of all words, ends included, and where each sentence starts; learn the new words."""
        if len(self.numbers) > MAX_WORDS:
            self._forget()
        words, starts = number_words(sentences, self.numbers)
        new = np.full((len(self.numbers) + 1 - len(self.entries), DIVISIONS), -1, dtype=np.int32)
        self.entries = np.concatenate([self.entries, new])
        return words, starts

    def _divide(self, word: str, number: int) -> list[int]:
        generator = random.Random(f"{number} {word}")
        text = word if self.normalizer is None else self.normalizer.normalize_str(word)
        ids = []
        for piece, _ in self.pre_tokenizer.pre_tokenize_str(text):
            symbols = [*piece[:-1], piece[-1] + self.suffix]
            symbols = merge(symbols, self.ranks, self.dropout, generator)
            ids += [self.vocabulary.get(symbol, self.unknown) for symbol in symbols]
        return ids


def merge(
    symbols: list[str], ranks: Mapping[tuple[str, str], int], dropout: float, generator: random.Random
) -> list[str]:
    """Merge symbols pair by pair, the most frequent of training first: algorithm 1 of BPE-dropout.

    Parameters
    ----------
    symbols : list of str
        Characters of a word; changed.
    ranks : mapping of (str, str) to int
        The merges, in the order in which they were learned.
    dropout : float
        Probability with which each possible merge is left out, drawn anew before each merge.
    generator : Random
    """
    while True:
        possible = [
            (rank, place)
            for place, pair in enumerate(pairwise(symbols))
            if (rank := ranks.get(pair)) is not None and generator.random() >= dropout
        ]
        if not possible:
            return symbols
        _, place = min(possible)
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
