import functools
import itertools
import math
import weakref
from types import SimpleNamespace

import pytest
import torch
from transformers import LogitsProcessorList

from vaswani.models.scorer_vaswani import Scorer
from vaswani.models.search_vaswani import (
    Hypotheses,
    PapersRules,
    SearchState,
    TransformersRules,
    beam_search,
    gather_beams,
    greedy_search,
    length_penalty,
    num_candidates,
    step_between_sizes,
)


def test_the_penalty_is_that_of_wu_et_al():
    assert length_penalty(1, 0.6) == 1
    assert length_penalty(torch.tensor([7, 25]), 1.0).tolist() == [2, 5]
    assert length_penalty(25, 0) == 1


def test_beams_are_gathered_with_their_whole_paths():
    paths = torch.arange(2 * 3 * 4 * 2).view(2, 3, 4, 2)
    chosen = torch.tensor([[2, 0], [1, 1]])
    assert torch.equal(gather_beams(paths, chosen), torch.stack([paths[0, [2, 0]], paths[1, [1, 1]]]))


@pytest.mark.parametrize(
    ("alpha", "finished", "is_done"),
    [
        # A penalty of length 2 is 6/7 here, of length 10 it is 6/15: what is alive can still reach -7/6.
        (-1.0, -1.5, False),
        (-1.0, -1.1, True),
        # A penalty of length 2 is 7/6 here, of length 10 it is 15/6: what is alive can still reach -0.4.
        (1.0, -0.5, False),
        (1.0, -0.3, True),
    ],
)
def test_a_sentence_is_done_when_no_length_within_reach_could_be_better(alpha, finished, is_done):
    hypotheses = Hypotheses.start(torch.tensor([10]), num_beams=1)
    hypotheses.paths = torch.zeros(1, 1, 1, 2, dtype=torch.int64)
    hypotheses.scores = torch.tensor([[-1.0]])
    hypotheses.finished_scores = torch.tensor([[finished]])
    assert hypotheses.is_done(PapersRules(alpha), wanted=1).tolist() == [is_done]


@pytest.mark.parametrize(("finished", "wanted"), [([-0.3, -0.9], 1), ([-0.3, -0.35], 2), ([-0.5, -math.inf], 0)])
def test_a_sentence_is_done_when_what_is_asked_for_could_not_be_better(finished, wanted):
    hypotheses = Hypotheses.start(torch.tensor([10]), num_beams=2)
    hypotheses.paths = torch.zeros(1, 2, 1, 2, dtype=torch.int64)
    hypotheses.scores = torch.tensor([[-1.0, -1.5]])  # can still reach -0.4
    hypotheses.finished_scores = torch.tensor([finished])
    done = [number for number in (1, 2) if hypotheses.is_done(PapersRules(1.0), number).item()]
    assert done == list(range(1, wanted + 1))


@pytest.mark.parametrize(
    ("length_penalty", "early_stopping", "finished", "is_done"),
    [
        (1.0, False, [-0.3, -math.inf], False),  # one of two has not finished
        (1.0, False, [-0.3, -0.51], False),  # what is alive, of length 2, could still end with -0.5
        (1.0, False, [-0.3, -0.5], True),
        (1.0, True, [-0.3, -math.inf], False),
        (1.0, True, [-0.3, -9.0], True),
        (1.0, "never", [-0.3, -0.11], False),  # at length 10 with -0.1
        (1.0, "never", [-0.05, -0.1], True),
        (0.0, "never", [-0.3, -0.99], True),
        (0.0, "never", [-0.3, -1.01], False),
        (-1.0, "never", [-0.3, -1.9], True),  # no longer one is better than that of length 2, with -2
        (-1.0, "never", [-0.3, -2.1], False),
    ],
)
def test_a_sentence_is_done_when_transformers_says_so(length_penalty, early_stopping, finished, is_done):
    hypotheses = Hypotheses.start(torch.tensor([10]), num_beams=2)
    hypotheses.paths = torch.zeros(1, 2, 2, 2, dtype=torch.int64)
    hypotheses.scores, hypotheses.finished_scores = torch.tensor([[-1.0, -1.5]]), torch.tensor([finished])
    assert hypotheses.is_done(TransformersRules(length_penalty, early_stopping), wanted=1).tolist() == [is_done]


@pytest.mark.parametrize("eos_token_ids", [[0], [0, 3], [0, 3, 1]])
def test_beams_stay_full_however_many_tokens_end_a_sentence(eos_token_ids):
    ends = torch.tensor(eos_token_ids)
    logits = torch.zeros(9).index_fill(0, ends, 5.0)
    hypotheses = Hypotheses.start(torch.tensor([10]), num_beams=3)
    for _ in range(3):
        totals = (hypotheses.scores[..., None] + logits).flatten(1)
        totals, places = totals.topk(num_candidates(3, ends))
        hypotheses.advance(totals, places // 9, places % 9, ends, PapersRules(0.6))
        assert hypotheses.scores.isfinite().all()
        assert not torch.isin(hypotheses.paths[..., 0], ends).any()


class BigramState:
    """A decoder state without a model: the last token and the sentence decide what follows."""

    def __init__(self, tables: torch.Tensor):
        self.tables, self.selected = tables, []
        self.last = lambda: None  # the logits of the step before, if anybody still has them

    def step(self, tokens, parents):
        assert self.last() is None, "the logits of the step before take memory that these could have"
        sentences = torch.arange(len(self.tables))[:, None]
        logits = self.tables[sentences, tokens[..., -1]].flatten(0, 1)
        self.last = weakref.ref(logits)
        return logits

    def select(self, sentences):
        self.tables = self.tables[sentences]
        self.selected.append(len(sentences))


def run_on_bigrams(search, tables, limit, num_beams):
    config = SimpleNamespace(
        return_dict_in_generate=False, output_scores=False, output_logits=False, num_return_sequences=1,
        suppress_tokens=None, min_length=0, min_new_tokens=0,
        _eos_token_tensor=torch.tensor([0]), _pad_token_tensor=torch.tensor(10),
    )  # fmt: skip
    state, starts = BigramState(tables), torch.full((len(tables) * num_beams, 1), 9)
    scorer = Scorer(LogitsProcessorList(), config, starts, only_bans=True)
    sequences = search(SearchState(state, scorer, limit, num_beams))
    assert (sequences[:, -1] != 10).any()  # no wider than the longest
    return [[token for token in row if token != 10] for row in sequences.tolist()], state.selected


SEARCHES = pytest.mark.parametrize(
    ("search", "num_beams"),
    [(greedy_search, 1), (functools.partial(beam_search, rules=PapersRules(0.6)), 4)],
    ids=["greedy", "beam"],
)


@SEARCHES
def test_a_search_needs_nothing_except_a_decoder_state(search, num_beams):
    tables, limit = torch.randn(12, 10, 10) * 2, torch.arange(1, 13)
    together, selected = run_on_bigrams(search, tables, limit, num_beams)
    alone = [run_on_bigrams(search, tables[n : n + 1], limit[n : n + 1], num_beams)[0][0] for n in range(12)]
    assert together == alone
    assert len({len(tokens) for tokens in together}) > 3
    # Each time a quarter of the sentences or more is left behind.
    assert len(selected) >= 3
    assert all(after <= 0.75 * before for before, after in itertools.pairwise([12, *selected]))
    if num_beams == 1:
        for tokens, table in zip(together, tables, strict=True):
            assert tokens[1:] == [int(table[token].argmax()) for token in tokens[:-1]]


def test_sizes_have_four_binary_digits():
    assert [step_between_sizes(count) for count in (1, 15, 16, 31, 32, 63, 64, 200)] == [1, 1, 2, 2, 4, 4, 8, 16]


@SEARCHES
def test_a_batch_shrinks_through_few_sizes(search, num_beams):
    tables, limit = torch.randn(150, 10, 10) * 2, torch.arange(1, 151)
    together, selected = run_on_bigrams(search, tables, limit, num_beams)
    assert len([size for size in selected if size > 15]) >= 3
    assert all(size % step_between_sizes(size) == 0 for size in selected)
    assert together[::15] == [
        run_on_bigrams(search, tables[n : n + 1], limit[n : n + 1], num_beams)[0][0] for n in range(0, 150, 15)
    ]
