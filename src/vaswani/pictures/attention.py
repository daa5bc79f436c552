"""What a model attends to while it translates a sentence: its weights by layer and head, and what each head does."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tokenizers import decoders
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vaswani.errors import UserError, check_is_unicode
from vaswani.models.generation_vaswani import length_arguments, max_positions
from vaswani.models.translator_vaswani import shift_tokens_right


ENCODER, DECODER, CROSS = "encoder", "decoder", "cross"
KINDS = {
    ENCODER: "encoder self-attention",
    DECODER: "decoder self-attention",
    CROSS: "encoder-decoder attention",
}
# The fields of `Attention` that hold the tokens that attend, and those that they attend to. In encoder-decoder
# attention the first are those that are being written, in the decoder's own those that it reads.
SIDES = {ENCODER: ("source", "source"), DECODER: ("inputs", "inputs"), CROSS: ("target", "source")}
NAMED = 0.5  # share of its attention from which on a head is named after where it goes
START, END = "<start>", "</s>"
WORD_STARTS, WORD_END = ("Ġ", "▁"), "</w>"  # of a byte-level BPE and of SentencePiece; of a BPE of words
REPLACEMENT = "\ufffd"  # what stands for a piece of a character


@dataclass(frozen=True)
class Attention:
    """The attention of a model over one pair of sentences.

    Attributes
    ----------
    source : list of str
        The source's tokens, ``</s>`` included, as the vocabulary has them (`readable`).
    inputs : list of str
        What the decoder reads: its start token, and the translation without its last token.
    target : list of str
        What it writes at each of these: the translation, ``</s>`` included.
    weights : dict of str to ndarray
        Of `KINDS`, those that the model has: (L, H, Q, K), the attention of each of Q tokens to each of K ones.
    symbols : frozenset of str
        Tokens that are words by themselves, such as a parser's brackets.
    """

    source: list[str]
    inputs: list[str]
    target: list[str]
    weights: dict[str, np.ndarray]
    symbols: frozenset[str] = frozenset({START, END})

    def labels(self, kind: str) -> tuple[list[str], list[str]]:
        """Return the tokens that attend, and those that they attend to."""
        queries, keys = SIDES[kind]
        return getattr(self, queries), getattr(self, keys)

    @property
    def alignment(self) -> np.ndarray:
        """The mean over layers and heads of encoder-decoder attention, (T, S): a soft alignment."""
        return self.weights[CROSS].mean((0, 1))


@dataclass(frozen=True)
class HeadFacts:
    """What a head does in one pair of sentences, as means over the tokens that attend.

    Attributes
    ----------
    entropy : float
        Of its weights, in bits: 0 where it looks at one token, log2 K where at all alike.
    distance : float
        In tokens; in encoder-decoder attention from where the token would stand if both sentences went along evenly.
    itself, previous, next, first, last : float
        Shares of its attention, those of the first three of self-attention alone.
    """

    entropy: float
    distance: float
    itself: float | None
    previous: float | None
    next: float | None
    first: float
    last: float

    @property
    def name(self) -> str:
        """What it does, if that is one thing."""
        shares = {
            "looks at the token itself": self.itself,
            "looks at the previous token": self.previous,
            "looks at the next token": self.next,
            "looks at the first token": self.first,
            "looks at the last token": self.last,
        }
        said, share = max(shares.items(), key=lambda item: item[1] or 0.0)
        return said if (share or 0.0) >= NAMED else ""


@torch.no_grad()
def read_attention(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str, target: str | None = None, **kwargs: Any
) -> Attention:
    """Read the weights while a model reads `source` and writes `target`.

    Parameters
    ----------
    model : PreTrainedModel
        The Transformer, with any attention function; or a predecessor that has attention.
    tokenizer : PreTrainedTokenizerBase
    source : str
    target : str or None, default=None
        None means what the model itself makes of the source.
    **kwargs
        As for ``generate()``, for that.

    Raises
    ------
    UserError
        If a sentence is empty, no Unicode or longer than the model's table of positions, or the model has no
        attention.
    """
    sentences = {"source": source} | ({} if target is None else {"target": target})
    for name, sentence in sentences.items():
        if not sentence.strip():
            raise UserError(f"{name}={sentence!r} must hold a word")
        check_is_unicode(name, sentence)
    source_ids = tokenizer(source, return_tensors="pt").input_ids.to(model.device)
    check_fits("source", source_ids, model)
    if target is None:
        labels = _translate(model, source_ids, kwargs)
    else:  # which some tokenizers encode in another way than a source
        labels = tokenizer(text_target=target, return_tensors="pt").input_ids
    check_fits("target", labels, model)
    labels = labels.to(model.device)
    config = model.config
    inputs = shift_tokens_right(labels, config.pad_token_id, config.decoder_start_token_id)
    implementation = config._attn_implementation
    if model._supports_sdpa:
        model.set_attn_implementation("eager")  # the only one that gives weights
    try:
        outputs = model.eval()(input_ids=source_ids, decoder_input_ids=inputs, output_attentions=True, use_cache=False)
    finally:
        if model._supports_sdpa:
            model.set_attn_implementation(implementation)
    found = {ENCODER: outputs.encoder_attentions, DECODER: outputs.decoder_attentions, CROSS: outputs.cross_attentions}
    weights = {kind: _stack(layers) for kind, layers in found.items() if layers}
    if not weights:
        raise UserError(f"model={config.name_or_path!r} has no attention to show")
    tokens = [tokenizer.convert_ids_to_tokens(ids[0].tolist()) for ids in (source_ids, inputs, labels)]
    symbols = frozenset({START, END, *tokenizer.get_added_vocab()} - {tokenizer.unk_token})
    return Attention(tokens[0], [START, *tokens[1][1:]], tokens[2], weights, symbols)


def check_fits(name: str, ids: torch.Tensor, model: PreTrainedModel) -> None:
    """Refuse (1, T) ids of a sentence that a model has no positions for."""
    limit = max_positions(model.config)
    if limit is not None and ids.shape[1] > limit:
        raise UserError(f"{name} has {ids.shape[1]:,} tokens: it must have at most the model's {limit:,} positions")


def _translate(model: PreTrainedModel, source_ids: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
    """Return the (1, T) ids of the best translation, ``</s>`` included where it got so far."""
    one = {"num_return_sequences": 1, "return_dict_in_generate": False}  # whatever the model's settings say
    given = one | given | length_arguments(model, source_ids.shape[1], given)
    ids = model.generate(input_ids=source_ids, **given)[0, 1:]  # without the start, which may be ``</s>`` too
    return ids[ids != model.config.pad_token_id][None]


def _stack(layers: Sequence[torch.Tensor]) -> np.ndarray:
    """Return weights as (L, H, Q, K), with one head where a model has no heads."""
    return np.stack([layer[0].float().reshape(-1, *layer.shape[-2:]).cpu().numpy() for layer in layers])


def readable(token: str) -> str:
    """Write a token as text; as it is, if it is of a byte-level vocabulary and holds but a part of a character."""
    text = decoders.ByteLevel().decode([token])
    return (token if REPLACEMENT in text else text).replace("▁", " ").replace(WORD_END, " ")


def join_words(attention: Attention) -> Attention:
    """Join word pieces: attention to a word is the sum over its pieces, attention of a word their mean."""
    sides = {name: _words(getattr(attention, name), attention.symbols) for name in ("source", "inputs", "target")}
    weights = {}
    for kind, of_pieces in attention.weights.items():
        queries, keys = (_membership(sides[name]) for name in SIDES[kind])
        means = queries / queries.sum(1, keepdims=True)
        weights[kind] = means @ of_pieces @ keys.T
    joined = {
        name: ["".join(getattr(attention, name)[place] for place in word) for word in words]
        for name, words in sides.items()
    }
    return replace(attention, **joined, weights=weights)


def _words(tokens: Sequence[str], symbols: frozenset[str]) -> list[list[int]]:
    """Return which tokens each word has; vocabularies mark either where a word begins or where it ends."""
    words: list[list[int]] = []
    ends_are_marked = any(token.endswith(WORD_END) for token in tokens)
    for place, token in enumerate(tokens):
        before = tokens[place - 1]
        begins = before.endswith(WORD_END) if ends_are_marked else token.startswith(WORD_STARTS)
        if not words or begins or {before, token} & symbols:
            words.append([])
        words[-1].append(place)
    return words


def _membership(words: list[list[int]]) -> np.ndarray:
    """Return (words, tokens): 1 where a token belongs to a word."""
    matrix = np.zeros((len(words), sum(map(len, words))))
    for number, places in enumerate(words):
        matrix[number, places] = 1
    return matrix


def head_facts(weights: np.ndarray, kind: str) -> HeadFacts:
    """Say what a head does, from its (Q, K) weights of one of `KINDS`."""
    queries, keys = weights.shape
    logs = np.log2(weights, where=weights > 0, out=np.zeros_like(weights))
    rows, columns = np.arange(queries)[:, None], np.arange(keys)[None]
    expected = rows if kind != CROSS else rows * (keys - 1) / max(1, queries - 1)
    neighbours: list[float | None] = [None] * 3
    if kind != CROSS:
        neighbours = [float(np.trace(weights, offset)) / queries for offset in (0, -1, 1)]
    return HeadFacts(
        float(-(weights * logs).sum(1).mean()),
        float((weights * np.abs(columns - expected)).sum(1).mean()),
        *neighbours,
        first=float(weights[:, 0].mean()),
        last=float(weights[:, -1].mean()),
    )
