"""The shared byte-pair encoding of both languages (section 5.1), built once and shipped as ``tokenizer.json``.

Any UTF-8 text survives encoding and decoding: the alphabet is the 256 bytes, nothing is normalized, and text such as
"</s>" stays text. ``</s>`` ends every sentence; ``<pad>`` is the last id.

Loading needs nothing of ours: ``PreTrainedTokenizerFast.from_pretrained(folder)`` does it anywhere. ``AutoTokenizer``
does it too, but where this package is not imported it asks whether to trust the folder's code: it loads the model's
config first, whatever the tokenizer's own files say.
"""

from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast


EOS_TOKEN = "</s>"
PAD_TOKEN = "<pad>"
SMALLEST_VOCAB_SIZE = len(pre_tokenizers.ByteLevel.alphabet()) + 2


def train_tokenizer(sentences: Iterable[str], vocab_size: int, symbols: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Train the shared vocabulary on sentences of both languages.

    Parameters
    ----------
    sentences : iterable of str
        Source and target sentences of the training split.
    vocab_size : int
        Types, ``</s>``, ``<pad>`` and the symbols included. At least 258 and the symbols.
    symbols : sequence of str, default=()
        One type each, wherever they stand, with the white space before them: the brackets of linearized trees.

    Returns
    -------
    PreTrainedTokenizerFast
        Of `vocab_size` types, with ``</s>`` at 0 and ``<pad>`` at `vocab_size` - 1.

    Raises
    ------
    ValueError
        If `vocab_size` is too small, or larger than the sentences support.

    Notes
    -----
    A space is put before every sentence, and taken away by the decoder, so that a word has the same ids at the start
    of a sentence as within it.
    """
    smallest = SMALLEST_VOCAB_SIZE + len(symbols)
    if vocab_size < smallest:
        and_symbols = f", and {len(symbols)} symbols" if symbols else ""
        raise ValueError(
            f"vocab_size={vocab_size} must be at least {smallest}: 256 bytes, {EOS_TOKEN} and {PAD_TOKEN}{and_symbols}"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Prepend(" ")
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", left=1, right=0)])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1 - len(symbols),
        special_tokens=[EOS_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    tokenizer.add_tokens([AddedToken(symbol, lstrip=True, normalized=False) for symbol in symbols])
    tokenizer.add_special_tokens([PAD_TOKEN])
    if tokenizer.get_vocab_size() < vocab_size:
        raise ValueError(
            f"vocab_size={vocab_size} is larger than the training text supports: at most {tokenizer.get_vocab_size()}"
        )
    end = EOS_TOKEN, tokenizer.token_to_id(EOS_TOKEN)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS_TOKEN}", pair=f"$A $B {EOS_TOKEN}", special_tokens=[end]
    )
    return wrap_tokenizer(tokenizer)


def wrap_tokenizer(tokenizer: Tokenizer, **special_tokens: str) -> PreTrainedTokenizerFast:
    """Make a tokenizer of transformers from one of `tokenizers` that has ``</s>`` and ``<pad>``, or its saved file.

    `special_tokens` are those that it has beside these two, such as `unk_token`.
    """
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS_TOKEN,
        pad_token=PAD_TOKEN,
        **special_tokens,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,  # text that reads "</s>" is text
        model_input_names=["input_ids", "attention_mask"],
    )
