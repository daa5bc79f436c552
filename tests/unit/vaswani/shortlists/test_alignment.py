import random
from collections import defaultdict

import pytest
import torch

from vaswani.shortlists import alignment
from vaswani.shortlists.alignment import Pairs, Translations, align, best_translations


def as_pairs(text: list[tuple[list[int], list[int]]]) -> Pairs:
    sides = list(zip(*text, strict=True))
    ids = [torch.tensor([token for sentence in side for token in sentence], dtype=torch.int32) for side in sides]
    return Pairs(*ids, *(torch.tensor(list(map(len, side))) for side in sides))


def by_brute_force(text, iterations: int) -> dict[tuple[int, int], float]:
    """Brown et al. 1993, with dictionaries, in double precision."""
    table = defaultdict(lambda: 1.0)
    for _ in range(iterations):
        counts, totals = defaultdict(float), defaultdict(float)
        for source, target in text:
            for t in target:
                denominator = sum(table[s, t] for s in source)
                for s in source:
                    counts[s, t] += table[s, t] / denominator
                    totals[s] += table[s, t] / denominator
        table = defaultdict(float, {(s, t): count / totals[s] for (s, t), count in counts.items()})
    return dict(table)


def as_dictionary(table: Translations, vocab_size: int) -> dict[tuple[int, int], float]:
    pairs = ((int(key) // vocab_size, int(key) % vocab_size) for key in table.keys)
    return dict(zip(pairs, table.probabilities.tolist(), strict=True))


@pytest.fixture
def text():
    """Sentences of 1 to 9 words, with repetitions, translated word by word by a permutation of the vocabulary."""
    draw = random.Random(1)
    words = list(range(1, 12))
    draw.shuffle(words)
    sources = [[draw.randrange(1, 12) for _ in range(draw.randrange(1, 10))] for _ in range(60)]
    return [([*source, 0], [*(words[s - 1] for s in source), 0]) for source in sources], [0, *words]


@pytest.mark.parametrize("iterations", [1, 2, 5])
@pytest.mark.parametrize("limits", [{}, {"CELLS": 40}, {"COUNTS": 30}, {"CELLS": 1, "COUNTS": 1}], ids=str)
def test_it_is_brown_et_als_model_1(text, iterations, limits, monkeypatch):
    for name, limit in limits.items():
        monkeypatch.setattr(alignment, name, limit)
    found = as_dictionary(align(as_pairs(text[0]), 12, iterations), 12)
    expected = by_brute_force(text[0], iterations)
    assert {key: value for key, value in found.items() if value} == pytest.approx(expected, abs=1e-5)


def test_brute_force_tells_one_iteration_from_the_next(text):
    """The control: the tolerance above is far below what an iteration changes."""
    one, two = (by_brute_force(text[0], iterations) for iterations in (4, 5))
    assert max(abs(one[key] - two[key]) for key in one) > 1e-2


def test_it_finds_the_words_that_translate_each_other(text):
    table = align(as_pairs(text[0]), 12, iterations=5)
    assert best_translations(table, 12, 1)[1:, 0].tolist() == text[1][1:]


def test_only_the_best_candidates_go_on(text):
    whole, pruned = (align(as_pairs(text[0]), 12, 5, candidates=count) for count in (12, 4))
    assert len(pruned.keys) == 12 * 4
    assert set(pruned.keys.tolist()) < set(whole.keys.tolist())
    assert torch.equal(best_translations(pruned, 12, 1), best_translations(whole, 12, 1))
    sums = torch.zeros(12).index_add_(0, pruned.keys // 12, pruned.probabilities)
    assert sums.tolist() == pytest.approx([1] * 12, abs=1e-5)


@pytest.mark.parametrize("counts", [1 << 26, 30], ids=["at once", "in parts"])
def test_progress_adds_up_to_all_pairs_of_all_iterations(text, counts, monkeypatch):
    monkeypatch.setattr(alignment, "COUNTS", counts)
    steps = []
    align(as_pairs(text[0]), 12, 3, on_pairs=steps.append)
    assert sum(steps) == 3 * 60
    assert min(steps) >= 0


def test_the_best_come_first_and_gaps_are_marked():
    table = Translations(torch.tensor([1, 2, 3, 4 * 2 + 1, 4 * 2 + 3]), torch.tensor([0.2, 0.5, 0.3, 0.0, 1.0]))
    assert best_translations(table, 4, 2).tolist() == [[2, 3], [-1, -1], [3, -1], [-1, -1]]
