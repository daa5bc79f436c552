"""The original byte-pair encoding of words (Sennrich et al. 2016), learned by their own program subword-nmt.

Our own vocabulary (`vaswani.tokenization`) is of bytes and reads any text. With this one results on Moses' tokens were
published: a word is a series of characters, the last one marked ``</w>``; a character that training did not have is
``<unk>``.
"""

import io
from collections.abc import Iterable, Sequence
from itertools import chain

from subword_nmt.learn_bpe import learn_bpe
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from vaswani.errors import UserError
from vaswani.tokenization import EOS_TOKEN, PAD_TOKEN, wrap_tokenizer


UNK_TOKEN = "<unk>"
END_OF_WORD = "</w>"


def learn_codes(sentences: Sequence[str], num_merges: int) -> str:
    """Learn merges from tokenized sentences, and return them as ``subword-nmt apply-bpe --codes`` reads them.

    Raises
    ------
    UserError
        If the sentences do not support so many merges, or any.
    """
    if not any(len(word) > 1 for sentence in sentences for word in sentence.split()):
        raise UserError("the training text must hold a word of two characters at least: there is nothing to merge")
    codes = io.StringIO()
    learn_bpe(sentences, codes, num_merges)  # shows its progress
    learned = len(read_merges(codes.getvalue()))
    if learned < num_merges:
        raise UserError(f"num_merges={num_merges} must be at most {learned}: no other pair occurs twice in the text")
    return codes.getvalue()


def read_merges(codes: str) -> list[tuple[str, str]]:
    """Return the pairs of symbols that codes merge, in their order."""
    _version, *lines = codes.splitlines()
    pairs = (line.split(" ") for line in lines)
    return [(left, right) for left, right in pairs]


def word_tokenizer(codes: str, characters: Iterable[str]) -> PreTrainedTokenizerFast:
    """Make the tokenizer that divides words by codes.

    Parameters
    ----------
    codes : str
        As `learn_codes` returns them.
    characters : iterable of str
        Those of the training text. Each is a type, inside a word and at its end.

    Returns
    -------
    PreTrainedTokenizerFast
        With ``</s>`` at 0, ``<unk>`` at 1 and ``<pad>`` behind all symbols. It divides text at white space, and writes
        it with a space between two words.
    """
    merges, alphabet = read_merges(codes), sorted({*characters})
    symbols = chain(
        alphabet, (character + END_OF_WORD for character in alphabet), (left + right for left, right in merges)
    )
    vocabulary = {symbol: number for number, symbol in enumerate(dict.fromkeys([EOS_TOKEN, UNK_TOKEN, *symbols]))}
    bpe = models.BPE(vocab=vocabulary, merges=merges, unk_token=UNK_TOKEN, end_of_word_suffix=END_OF_WORD)
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.BPEDecoder(suffix=END_OF_WORD)
    tokenizer.add_special_tokens([EOS_TOKEN, UNK_TOKEN, PAD_TOKEN])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS_TOKEN}", pair=f"$A $B {EOS_TOKEN}", special_tokens=[(EOS_TOKEN, vocabulary[EOS_TOKEN])]
    )
    return wrap_tokenizer(tokenizer, unk_token=UNK_TOKEN)
