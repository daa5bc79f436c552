"""The state that a predecessor keeps between two steps."""

import pytest
import torch
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import BaseModelOutput

from vaswani.models.predecessor_vaswani import StateCache, check_right_padded, select_rows, state_cache


def filled() -> StateCache:
    cache = StateCache()
    cache.state, cache.source, cache.length = {"h": torch.arange(4)}, {"keys": torch.arange(4) * 10}, 3
    return cache


def test_hypotheses_exchange_their_state_but_not_what_depends_on_the_source():
    cache = filled()
    cache.reorder_cache(torch.tensor([1, 1, 2, 3]))
    assert cache.state["h"].tolist() == [1, 1, 2, 3]
    assert cache.source["keys"].tolist() == [0, 10, 20, 30]
    assert cache.get_seq_length() == 3


def test_rows_are_selected_and_repeated():
    cache = filled()
    cache.batch_select_indices(torch.tensor([2, 3]))
    cache.batch_repeat_interleave(2)
    assert cache.state["h"].tolist() == [2, 2, 3, 3]
    assert cache.source["keys"].tolist() == [20, 20, 30, 30]
    cache.reset()
    assert (cache.state, cache.source, cache.get_seq_length()) == ({}, {}, 0)


def test_a_decoder_goes_on_from_a_state_only():
    cache = filled()
    assert state_cache(cache, None) is cache
    assert state_cache(None, False) is None
    assert isinstance(state_cache(None, True), StateCache)
    with pytest.raises(ValueError, match="past_key_values is a DynamicCache"):
        state_cache(DynamicCache(), True)


def test_padding_may_stand_behind_real_tokens_only():
    check_right_padded("decoder_attention_mask", None)
    check_right_padded("decoder_attention_mask", torch.tensor([[1, 1, 0], [1, 1, 1]]))
    with pytest.raises(ValueError, match="decoder_attention_mask has padding before"):
        check_right_padded("decoder_attention_mask", torch.tensor([[0, 1, 1], [1, 1, 1]]))


def test_whatever_has_a_row_a_hypothesis_is_selected():
    rows, three = torch.tensor([2]), torch.arange(3)
    output = select_rows(BaseModelOutput(last_hidden_state=three, hidden_states=(three, None)), rows, 3)
    assert output.last_hidden_state.tolist() == output.hidden_states[0].tolist() == [2]
    assert select_rows(True, rows, 3) is True
    assert select_rows(torch.arange(5), rows, 3).tolist() == [0, 1, 2, 3, 4]
