import math

import pytest
import torch
from marian_twin import marian_twin
from transformers import LogitsProcessor, SuppressTokensLogitsProcessor

from vaswani.models.allowed_tokens_vaswani import AllowedTokens
from vaswani.models.generation_vaswani import ModelState
from vaswani.models.incremental_vaswani import IncrementalState
from vaswani.models.scorer_vaswani import Scorer


IDS = [0, 2, 3, 5, 8, 9, 13, 21]
BEAMS = {"num_beams": 3, "num_return_sequences": 3}


@pytest.fixture
def model(random_model):
    model = random_model(position_embedding_type="learned", max_position_embeddings=40, tie_word_embeddings=False)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" not in name:
                # So that sentences have different translations, of several tokens and lengths.
                weight.normal_(0, 2)
    return model


@pytest.fixture
def source(batch, model):
    given = batch(model.config)
    return {name: given[name] for name in ("input_ids", "attention_mask")}


@pytest.fixture
def widths(monkeypatch):
    """Return the numbers of logits that the searches are given, step by step."""
    seen = []
    for name in ("continuations", "best"):
        original = getattr(Scorer, name)

        def recorded(self, logits, *arguments, original=original):
            seen.append(logits.shape[-1])
            return original(self, logits, *arguments)

        monkeypatch.setattr(Scorer, name, recorded)
    return seen


def test_it_is_a_softmax_over_the_allowed_tokens():
    scores = torch.randn(3, 23)
    expected = torch.full_like(scores, -math.inf)
    expected[:, IDS] = scores[:, IDS].log_softmax(-1)
    for given in (IDS, torch.tensor(IDS[::-1] + IDS, dtype=torch.int32)):
        assert torch.equal(AllowedTokens(given)(torch.zeros(3, 1), scores), expected)
    torch.testing.assert_close(AllowedTokens(IDS)(torch.zeros(3, 1), scores.log_softmax(-1)), expected)
    assert expected.exp().sum(1).tolist() == pytest.approx([1, 1, 1])


def test_where_others_have_ruled_out_all_of_them_nothing_is_left():
    scores = torch.randn(2, 23).index_fill(1, torch.tensor(IDS), -math.inf)
    assert (AllowedTokens(IDS)(torch.zeros(2, 1), scores) == -math.inf).all()


@pytest.mark.parametrize("ids", [[], torch.arange(0), [-1, 2], [0.5], 3, [[1, 2]]], ids=str)
def test_what_is_no_list_of_ids_is_refused(ids):
    with pytest.raises(ValueError, match="must be the ids of tokens: whole numbers from 0 on, at least one"):
        AllowedTokens(ids)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_ids_beyond_the_vocabulary_are_refused(num_beams, model, source):
    with pytest.raises(ValueError, match="must be below the vocabulary's size, 23, but one is 23"):
        model.generate(**source, num_beams=num_beams, logits_processor=[AllowedTokens([0, 23])])
    with pytest.raises(ValueError, match="must be below the vocabulary's size, 23, but one is 99"):
        AllowedTokens([99])(torch.zeros(1, 1), torch.zeros(1, 23))


class Nothing(LogitsProcessor):
    """Changes nothing, but nobody knows that."""

    def __call__(self, input_ids, scores):
        return scores


SETTINGS = [
    {"num_beams": 1},
    BEAMS,
    BEAMS | {"min_new_tokens": 4},
    {"num_beams": 1, "min_length": 5},
    BEAMS | {"suppress_tokens": [5, 9, 17]},
    {"num_beams": 4, "length_penalty_alpha": 1.0, "max_new_tokens": 7},
    {"num_beams": 1, "suppress_tokens": [8], "max_new_tokens": 5},
]


@pytest.mark.parametrize("state", [IncrementalState, ModelState])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_cut_output_layer_gives_what_the_processor_gives(settings, state, model, source, widths):
    if state is ModelState:
        model.lm_head.register_forward_hook(lambda *given: None)
    assert isinstance(model.decoder_state(1, {"encoder_outputs": (torch.zeros(4, 7, 16),)}), state)
    cut = model.generate(**source, **settings, logits_processor=[AllowedTokens(IDS)])
    assert set(widths) == {8}
    widths.clear()
    plain = model.generate(**source, **settings, logits_processor=[Nothing(), AllowedTokens(IDS)])
    assert set(widths) == {23}
    assert torch.equal(cut, plain)
    assert len(cut.unique()) > 2
    assert set(cut[:, 1:].flatten().tolist()) <= {*IDS, 22} - {*settings.get("suppress_tokens", [])}
    everything = model.generate(**source, **settings)
    assert cut.shape != everything.shape or not torch.equal(cut, everything)


def test_scores_of_a_cut_output_layer_are_those_of_the_processor(model, source, widths):
    settings = BEAMS | {"return_dict_in_generate": True, "min_new_tokens": 3}
    found = {}
    for cut, given in ((True, {}), (False, {"output_scores": True})):
        widths.clear()
        found[cut] = model.generate(**source, **settings, **given, logits_processor=[AllowedTokens(IDS)])
        assert set(widths) == {8 if cut else 23}
    assert torch.equal(found[True].sequences, found[False].sequences)
    torch.testing.assert_close(found[True].sequences_scores, found[False].sequences_scores, rtol=0, atol=1e-5)


def test_probabilities_of_the_whole_vocabulary_would_be_others(model, source, monkeypatch):
    """The control: the scores tell whether the search normalizes over the allowed tokens."""
    settings = BEAMS | {"return_dict_in_generate": True}
    right = model.generate(**source, **settings, logits_processor=[AllowedTokens(IDS)])
    monkeypatch.setattr(
        AllowedTokens,
        "__call__",
        lambda self, ids, scores: torch.full_like(scores, -math.inf).index_copy_(1, self.ids, scores[:, self.ids]),
    )
    wrong = model.generate(**source, **settings, output_scores=True, logits_processor=[AllowedTokens(IDS)])
    assert not torch.allclose(right.sequences_scores, wrong.sequences_scores, rtol=0, atol=1e-2)


@pytest.mark.parametrize(
    "others",
    [
        [SuppressTokensLogitsProcessor([5], "cpu")],
        [AllowedTokens([0, 2, 3, 7])],
        [type("Own", (AllowedTokens,), {})(IDS)],
    ],
    ids=["another processor", "two of them", "a subclass"],
)
def test_beside_other_processors_the_output_layer_stays_whole(others, model, source, widths):
    tokens = model.generate(**source, num_beams=2, logits_processor=[*others, AllowedTokens(IDS)])
    assert set(widths) == {23}
    assert set(tokens[:, 1:].flatten().tolist()) <= {*IDS, 22}
    if type(others[0]) is not AllowedTokens:
        return
    assert set(tokens[:, 1:].flatten().tolist()) <= {0, 2, 3, 22}


@pytest.mark.parametrize("num_beams", [1, 3])
def test_finished_sentences_are_dropped_from_a_cut_output_layer_too(num_beams, model, source, monkeypatch):
    settings = {"num_beams": num_beams, "logits_processor": [AllowedTokens(IDS)]}
    expected = model.generate(**source, **settings)
    assert len({int((row != 22).sum()) for row in expected[:, 1:]}) > 1  # of several lengths
    monkeypatch.setattr("vaswani.models.search_vaswani.MAX_SHARE_TO_DROP_FINISHED", 0)
    assert torch.equal(model.generate(**source, **settings), expected)


def test_fewer_tokens_than_candidates_are_enough(model, source):
    for num_beams in (1, 4):
        tokens = model.generate(**source, num_beams=num_beams, max_new_tokens=4, logits_processor=[AllowedTokens([0])])
        assert tokens.tolist() == [[22, 0]] * 4


@pytest.mark.parametrize("given", [{}, {"output_scores": True}], ids=["cut", "whole"])
def test_where_all_that_is_allowed_is_ruled_out_nothing_has_a_probability(given, model, source):
    how = {"num_beams": 2, "min_new_tokens": 3, "suppress_tokens": [5], "return_dict_in_generate": True} | given
    output = model.generate(**source, **how, logits_processor=[AllowedTokens([0, 5])])
    assert output.sequences_scores.tolist() == [-math.inf] * 4


def test_an_output_layer_with_a_bias_is_cut_with_it(model, source):
    model.lm_head.bias = torch.nn.Parameter(torch.randn(23) * 3)
    settings = BEAMS | {"return_dict_in_generate": True, "logits_processor": [AllowedTokens(IDS)]}
    cut, plain = model.generate(**source, **settings), model.generate(**source, **settings, output_scores=True)
    torch.testing.assert_close(cut.sequences_scores, plain.sequences_scores, rtol=0, atol=1e-5)


def test_bfloat16_weights_are_cut_too(model, source, widths):
    tokens = model.bfloat16().generate(**source, num_beams=4, logits_processor=[AllowedTokens(IDS)])
    assert set(widths) == {8}
    assert set(tokens[:, 1:].flatten().tolist()) <= {*IDS, 22}


@pytest.mark.parametrize(
    "given", [{"length_penalty": 1.0, "num_beams": 3}, {"do_sample": True, "num_beams": 1}], ids=str
)
def test_transformers_searches_and_other_models_take_it(given, model, source):
    for other in (model, marian_twin(model)):
        tokens = other.generate(**source, **given, max_new_tokens=9, logits_processor=[AllowedTokens(IDS)])
        assert set(tokens[:, 1:].flatten().tolist()) <= {*IDS, 22}
