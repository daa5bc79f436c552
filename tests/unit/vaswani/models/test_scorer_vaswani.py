"""The best continuations of given logits, beside those that follow from log-probabilities of the whole vocabulary."""

import math
from types import SimpleNamespace

import pytest
import torch
from transformers import LogitsProcessorList
from transformers.generation import TemperatureLogitsWarper

from vaswani.models.fusion_vaswani import summarize
from vaswani.models.scorer_vaswani import EndAtLimit, ForcedEndAtLimit, Scorer


BANNED = list(range(0, 400, 10))
NOTHING = torch.empty(6, 0, dtype=torch.int64)  # generated so far


def scorer(processors=(), only_bans=True, min_new_tokens=0, summary=None) -> Scorer:
    config = SimpleNamespace(
        return_dict_in_generate=False, output_scores=False, output_logits=False, suppress_tokens=BANNED,
        min_length=0, min_new_tokens=min_new_tokens, _eos_token_tensor=torch.tensor([4000]), _pad_token_tensor=None,
    )  # fmt: skip
    return Scorer(LogitsProcessorList(processors), config, torch.full((6, 1), 9), only_bans, summary)


@pytest.fixture
def logits():
    """Those of 2 sentences with 3 hypotheses; what is banned would be the best of as many blocks, or the end."""
    logits = torch.randn(6, 4096)
    logits[:, [*BANNED, 4000]] += 9
    return logits


def expected(logits, scores, banned, count):
    """Return what `continuations` should, by the definition."""
    log_probs = logits.log_softmax(-1)
    log_probs[:, banned] = -math.inf
    totals, places = (scores.view(-1, 1) + log_probs).view(2, -1).topk(count)
    return totals, places // logits.shape[1], places % logits.shape[1]


@pytest.mark.parametrize(("summary", "is_on_cpu"), [(None, True), (summarize, True), (None, False)])
@pytest.mark.parametrize("min_new_tokens", [0, 2])
def test_continuations_are_the_most_likely_ones_that_are_not_ruled_out(logits, summary, is_on_cpu, min_new_tokens):
    scores = torch.randn(2, 3)
    banned = BANNED + ([4000] if min_new_tokens else [])
    found = scorer(min_new_tokens=min_new_tokens, summary=summary)
    found.is_on_cpu = is_on_cpu
    found = found.continuations(logits.clone(), NOTHING, scores, 6)
    torch.testing.assert_close(found, expected(logits, scores, banned, 6))
    assert (found[2] == 4000).any() == (not min_new_tokens)


@pytest.mark.parametrize("is_on_cpu", [True, False])
def test_a_row_without_any_token_continues_nothing(logits, is_on_cpu):
    found = scorer()
    found.is_on_cpu = is_on_cpu
    logits[1] = -math.inf
    totals, parents, _ = found.continuations(logits, NOTHING, torch.tensor([[0.0, -1.0, -2.0], [0.0, -1.0, -2.0]]), 6)
    assert totals.isfinite().all()
    assert not (parents[0] == 1).any()


def test_whatever_else_processes_logits_gets_log_probabilities(logits):
    scores, warper = torch.randn(2, 3), TemperatureLogitsWarper(2.0)
    found = scorer([warper], only_bans=False).continuations(logits.clone(), NOTHING, scores, 6)
    totals, places = (scores.view(-1, 1) + logits.log_softmax(-1) / 2).view(2, -1).topk(6)
    torch.testing.assert_close(found, (totals, places // 4096, places % 4096))


def test_greedy_search_takes_the_best_that_is_not_ruled_out(logits):
    assert scorer().best(logits.clone(), NOTHING).tolist() == [4000] * 6
    banned = logits.index_fill(1, torch.tensor([*BANNED, 4000]), -math.inf)
    assert torch.equal(scorer(min_new_tokens=1).best(logits.clone(), NOTHING), banned.argmax(1))


def test_ends_are_forced_at_the_limit_of_each_sentence():
    forcing, ending = ForcedEndAtLimit([3], torch.tensor([3, 5])), EndAtLimit(torch.tensor([3, 5]))
    scores = torch.zeros(4, 6)
    alone = torch.full((6,), -math.inf).index_fill(0, torch.tensor(3), 0)
    for length, forced in ((1, []), (2, [0, 1]), (3, [0, 1]), (4, [0, 1, 2, 3])):
        found = forcing(torch.zeros(4, length), scores)
        is_forced = (found == alone).all(1)
        assert is_forced.nonzero()[:, 0].tolist() == forced
        assert torch.equal(found[~is_forced], scores[~is_forced])
        assert ending(torch.zeros(4, length + 1), scores).nonzero()[:, 0].tolist() == forced
