"""From sentences to ids: the same ids as the tokenizer gives, as arrays, several times faster."""

import hashlib
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerBase


MAX_WORDS = 500_000  # about 100 MB


class SentenceEncoder:
    """Encodes sentences as ``tokenizer(sentences)`` does, each with its special tokens.

    With a tokenizer like our own it looks up words that it has met before: text repeats most of its words, and
    tokenizing them takes most of the time.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        Truncation and padding of a fast one are switched off, as in a plain call. One in Python, as OPUS-MT's, encodes
        the sentences itself, possibly targets in another way than sources.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        self.backend = plain_backend(tokenizer) if tokenizer.is_fast else None
        self.by_words = tokenizer.is_fast and encodes_words_apart(tokenizer)
        self.end = tokenizer.eos_token_id
        self._forget()

    def _forget(self) -> None:
        # The pool holds the ids of all known words in order, sizes[w] of them for word w; word 0 is </s>.
        self.numbers: dict[str, int] = {}
        self.pool, self.sizes = np.array([self.end], dtype=np.int32), np.array([1], dtype=np.int32)

    def __call__(self, sentences: Sequence[str], is_target: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Encode sentences of one side.

        Returns
        -------
        ids : ndarray of int32
            The ids of all sentences, one after another.
        lengths : ndarray of int32, shape (N,)
            Ids of each sentence.
        """
        if not self.by_words:
            return self._encode(sentences, is_target=is_target)
        words, starts = self._number_words(sentences)
        ids, lengths = gather(self.pool, self.sizes, words)
        return ids, np.add.reduceat(lengths, starts)

    def _number_words(self, sentences: Sequence[str]) -> tuple[np.ndarray, list[int]]:
        """Return the numbers of all words, ends included, and where each sentence starts; learn the new words."""
        if len(self.numbers) > MAX_WORDS:
            self._forget()
        known = len(self.numbers)
        words, starts = number_words(sentences, self.numbers)
        count = len(self.numbers) - known
        new = list(islice(reversed(self.numbers), count))[::-1]  # from the back: the known may be many
        pool, sizes = self._encode(new, add_special_tokens=False)
        self.pool, self.sizes = np.append(self.pool, pool), np.append(self.sizes, sizes)
        return words, starts

    def _encode(
        self, texts: Sequence[str], add_special_tokens: bool = True, is_target: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        if self.backend is None:
            rows = self.tokenizer(**{"text_target" if is_target else "text": list(texts)}, verbose=False).input_ids
        else:
            encodings = self.backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
            rows = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, rows), np.int32, len(rows))
        return np.fromiter(chain.from_iterable(rows), np.int32, lengths.sum()), lengths


def number_words(sentences: Sequence[str], numbers: dict[str, int]) -> tuple[np.ndarray, list[int]]:
    """Return the numbers of all words, 0 at the end of each sentence, and where each sentence starts.

    A word that `numbers` does not have gets the next number there, from 1 on.
    """
    words, starts = list[int](), list[int]()
    for sentence in sentences:
        starts.append(len(words))
        words += [numbers.setdefault(word, len(numbers) + 1) for word in split_into_words(sentence)]
        words.append(0)
    return np.array(words), starts


def gather(pool: np.ndarray, sizes: np.ndarray, entries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of some entries of a pool, one after another, and how many each has.

    Parameters
    ----------
    pool : ndarray
        The ids of all entries, one after another.
    sizes : ndarray
        How many ids each entry has.
    entries : ndarray
        Numbers of entries, in any order and repeated.
    """
    lengths = sizes[entries]
    first = np.cumsum(sizes) - sizes
    shift = first[entries] - (np.cumsum(lengths) - lengths)  # from places in the result to places in the pool
    return pool[np.arange(lengths.sum()) + np.repeat(shift, lengths)], lengths


def description(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return what two tokenizers have in common only if they give the same ids."""
    if tokenizer.is_fast:
        return plain_backend(tokenizer).to_str()
    with TemporaryDirectory() as folder:
        files = [Path(name) for name in tokenizer.save_vocabulary(folder)]
        sums = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    return f"{type(tokenizer).__name__} {sums}"


def plain_backend(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """Return the tokenizer of `tokenizers` inside a fast one, set as transformers sets it for a plain call."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    return backend


def encodes_words_apart(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a sentence's ids are its words' ids and ``</s>``: as with `train_tokenizer`'s, and `word_tokenizer`'s.

    Notes
    -----
    The pattern by which `ByteLevel` divides a text (GPT-2's) takes a space only at the start of a match, except in
    runs of white space. So a single space between two other characters always starts a new piece, which depends on
    nothing before it. The normalizer puts the same space before a word that is encoded by itself.
    """
    backend = tokenizer.backend_tokenizer
    of_bytes = normalizers.Prepend(" "), pre_tokenizers.ByteLevel(add_prefix_space=False)
    of_words = None, pre_tokenizers.WhitespaceSplit()
    return (
        repr((backend.normalizer, backend.pre_tokenizer)) in (repr(of_bytes), repr(of_words))
        and isinstance(backend.model, models.BPE)
        and not backend.model.dropout
        and tokenizer.split_special_tokens
        and all(token.special for token in backend.get_added_tokens_decoder().values())
        and backend.encode("a").ids == [*backend.encode("a", add_special_tokens=False).ids, tokenizer.eos_token_id]
    )


def split_into_words(sentence: str) -> list[str]:
    """Split at spaces; where one stands at an end or beside other white space, the sentence stays in one piece."""
    words = sentence.split(" ")
    if words == sentence.split() or all(word and word == word.strip() for word in words):
        return words
    return [sentence]
