"""IBM Model 1 (Brown et al. 1993, section 4): how likely each target token translates each source token.

p(t | s), over ids, by expectation maximization on pairs of sentences. The source's ``</s>`` does what Brown's empty
word does: what has no source word of its own is aligned to it.

Memory is bounded, whatever the vocabulary and the text: the first iteration, in which all is equally likely, counts a
part of the source types at a time; only the best candidates of each are kept for the others.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch


CANDIDATES = 256  # target types of each source type that are kept after the first iteration
CELLS = 1 << 21  # pairs of positions that are worked on at a time
COUNTS = 1 << 26  # of the first iteration that are in memory at a time


class Pairs(NamedTuple):
    """N pairs of sentences as ids: those of all sources one after the other, and those of all targets."""

    source_ids: torch.Tensor
    target_ids: torch.Tensor
    source_lengths: torch.Tensor  # (N,)
    target_lengths: torch.Tensor  # (N,)


class Translations(NamedTuple):
    """A sparse table of p(t | s), in ascending order of its keys."""

    keys: torch.Tensor  # (M,) s * vocab_size + t
    probabilities: torch.Tensor  # (M,)


def align(
    pairs: Pairs,
    vocab_size: int,
    iterations: int = 4,
    candidates: int = CANDIDATES,
    on_pairs: Callable[[int], object] = lambda count: None,
) -> Translations:
    """Estimate p(t | s).

    Parameters
    ----------
    pairs : Pairs
    vocab_size : int
        V, of both languages.
    iterations : int, default=4
        At least 1.
    candidates : int, default=256
        Most target types of a source type. Of more, those with the largest count of the first iteration are kept.
    on_pairs : callable, optional
        Called with a number of pairs, which add up to `iterations` times all.

    Returns
    -------
    Translations
        The probabilities given one source type add up to 1, unless none of its pairs is left.
    """
    rows = max(1, COUNTS // vocab_size)
    parts = [range(start, min(start + rows, vocab_size)) for start in range(0, vocab_size, rows)]
    tables, reported = [], 0
    for number, part in enumerate(parts, start=1):
        tables.append(_first_counts(pairs, vocab_size, part, candidates))
        done = len(pairs.source_lengths) * number // len(parts)
        on_pairs(done - reported)
        reported = done
    keys, counts = (torch.cat(tensors) for tensors in zip(*tables, strict=True))
    table = _normalize(Translations(keys, counts), vocab_size)
    for _ in range(iterations - 1):
        table = _improve(pairs, vocab_size, table, on_pairs)
    return table


def best_translations(table: Translations, vocab_size: int, count: int) -> torch.Tensor:
    """Return the most likely target types of each source type, the best first: (V, count) ids, then -1."""
    sources, targets = table.keys // vocab_size, table.keys % vocab_size
    order = table.probabilities.argsort(descending=True, stable=True)
    order = order[sources[order].argsort(stable=True)]
    order = order[table.probabilities[order] > 0]
    sources, targets = sources[order], targets[order]
    rank = torch.arange(len(sources)) - torch.searchsorted(sources, sources)
    best = torch.full((vocab_size, count), -1, dtype=torch.int32)
    is_best = rank < count
    best[sources[is_best], rank[is_best]] = targets[is_best].int()
    return best


def _batches(pairs: Pairs, padding: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (B, S) source ids and (B, T) target ids of pairs of similar lengths."""
    lengths = torch.stack([pairs.source_lengths, pairs.target_lengths])
    starts = lengths.cumsum(1) - lengths
    order = (lengths[0] * (1 + int(lengths[1].max())) + lengths[1]).argsort()
    place = 0
    while place < len(order):
        chosen = order[place : place + max(1, CELLS // int(lengths[:, order[place]].prod()))]
        widths = lengths[:, chosen].amax(1)
        chosen = chosen[: max(1, CELLS // int(widths.prod()))]
        yield (
            _pad(pairs.source_ids, starts[0, chosen], lengths[0, chosen], padding),
            _pad(pairs.target_ids, starts[1, chosen], lengths[1, chosen], padding),
        )
        place += len(chosen)


def _pad(ids: torch.Tensor, starts: torch.Tensor, lengths: torch.Tensor, padding: int) -> torch.Tensor:
    """Return rows of ids, each from its start on, padded to the longest."""
    columns = torch.arange(int(lengths.max()))
    places = (starts[:, None] + columns).clamp(max=len(ids) - 1)
    return ids[places].long().masked_fill(columns >= lengths[:, None], padding)


def _first_counts(pairs: Pairs, vocab_size: int, rows: range, candidates: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys and counts of the first iteration, of the source types in `rows`, the largest counts of each.

    Every source token is equally likely to have become a target token: in a sentence of S tokens, it counts 1 / S.
    """
    counts = torch.zeros(len(rows), vocab_size + 1)  # and a column for padding
    for sources, targets in _batches(pairs, vocab_size):
        shares = 1 / (sources < vocab_size).sum(1)
        sentence, place = ((sources >= rows.start) & (sources < rows.stop)).nonzero(as_tuple=True)
        cells = (sources[sentence, place] - rows.start)[:, None] * (vocab_size + 1) + targets[sentence]
        counts.view(-1).index_add_(0, cells.flatten(), shares[sentence][:, None].expand_as(cells).flatten())
    best, targets = counts[:, :vocab_size].topk(min(candidates, vocab_size))
    keys = (torch.arange(rows.start, rows.stop)[:, None] * vocab_size + targets)[best > 0]
    order = keys.argsort()
    return keys[order], best[best > 0][order]


def _improve(pairs: Pairs, vocab_size: int, table: Translations, on_pairs: Callable[[int], object]) -> Translations:
    """Return the table after another iteration."""
    counts = torch.zeros_like(table.probabilities)
    for sources, targets in _batches(pairs, vocab_size):
        wanted = sources[:, :, None] * vocab_size + targets[:, None]  # (B, S, T)
        # Padding would look like the first target type of the next source type.
        wanted.masked_fill_((sources == vocab_size)[:, :, None] | (targets == vocab_size)[:, None], -1)
        cells = torch.searchsorted(table.keys, wanted).clamp_(max=len(table.keys) - 1)
        shares = table.probabilities[cells].mul_(table.keys[cells] == wanted)
        shares /= shares.sum(1, keepdim=True).clamp_(min=torch.finfo(shares.dtype).tiny)
        counts.index_add_(0, cells.flatten(), shares.flatten())
        on_pairs(len(sources))
    return _normalize(Translations(table.keys, counts), vocab_size)


def _normalize(table: Translations, vocab_size: int) -> Translations:
    """Make counts probabilities: those of each source type add up to 1."""
    sources = table.keys // vocab_size
    totals = torch.zeros(vocab_size).index_add_(0, sources, table.probabilities)
    return Translations(table.keys, table.probabilities / totals[sources].clamp(min=torch.finfo(totals.dtype).tiny))
