"""Attention as a function: its values on numbers small enough to check by hand, and its blocks against full masks."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from vaswani.models import attention_vaswani
from vaswani.models.attention_vaswani import (
    banded_attention_forward,
    eager_attention_forward,
    reach_of,
    restricted,
)


def test_weights_are_the_softmax_of_scaled_products():
    query, value = torch.tensor([[[[2.0, 0.0]]]]), torch.tensor([[[[1.0], [5.0]]]])
    key = torch.tensor([[[[math.log(3) / 2, 7.0], [0.0, 9.0]]]])
    output, weights = eager_attention_forward(nn.Identity().eval(), query, key, value, None, scaling=1.0)
    assert weights.flatten().tolist() == pytest.approx([0.75, 0.25])
    assert output.flatten().tolist() == pytest.approx([0.75 * 1 + 0.25 * 5])
    _, scaled = eager_attention_forward(nn.Identity().eval(), query, key, value, None)
    odds = math.sqrt(3 ** math.sqrt(2))
    assert scaled.flatten().tolist() == pytest.approx([odds / (1 + odds), 1 / (1 + odds)])


def test_a_centered_neighborhood_has_one_more_before_than_behind_if_it_is_even():
    assert [reach_of(r, is_causal=False) for r in (1, 2, 3, 4, 5)] == [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2)]
    assert [reach_of(r, is_causal=True) for r in (1, 2, 3)] == [(0, 0), (1, 0), (2, 0)]


def neighbors(i: int, r: int, is_causal: bool) -> set[int]:
    """Return the positions that position i sees, counted from its own outwards."""
    steps = range(r) if is_causal else [(step + 1) // 2 * (1 if step % 2 else -1) for step in range(r)]
    return {i - step for step in steps}


def dense(query, key, value, attention_mask, r: int, is_causal: bool, first: int) -> torch.Tensor:
    """Return the output of eager attention with a full mask."""
    legal = torch.zeros(query.shape[2], key.shape[2], dtype=torch.bool)
    for i in range(query.shape[2]):
        for j in neighbors(first + i, r, is_causal) & set(range(key.shape[2])):
            legal[i, j] = True
    legal = legal if attention_mask is None else legal & attention_mask[:, None, None]
    mask = torch.zeros(legal.shape, dtype=query.dtype).masked_fill(~legal, torch.finfo(query.dtype).min)
    return eager_attention_forward(nn.Identity().eval(), query, key, value, mask)[0]


LENGTH = 75  # no multiple of a block


def states(length: int = LENGTH) -> list[torch.Tensor]:
    """Return float64 queries, keys and values whose d_v is not d_k."""
    shapes = ((2, 3, length, 6), (2, 3, LENGTH, 6), (2, 3, LENGTH, 4))
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def restriction_of(r: int, is_causal: bool) -> SimpleNamespace:
    return SimpleNamespace(restriction=r, is_causal=is_causal)


def padding() -> torch.Tensor:
    """Return a mask of a sentence padded left and of one padded right, further than a neighborhood reaches."""
    mask = torch.ones(2, LENGTH, dtype=torch.bool)
    mask[0, :9] = mask[1, 41:] = False
    return mask


def largest_difference(r: int, is_causal: bool, attention_mask: torch.Tensor | None) -> float:
    """Compare outputs and gradients of real positions in blocks and with a full mask."""
    tensors = states()
    real = torch.ones(2, LENGTH, dtype=torch.bool) if attention_mask is None else attention_mask
    weights, found = torch.randn(int(real.sum()), 3, 4, dtype=torch.float64), []
    for output in (
        banded_attention_forward(restriction_of(r, is_causal), *tensors, attention_mask)[0],
        dense(*tensors, attention_mask, r, is_causal, first=0),
    ):
        gradients = torch.autograd.grad((output[real] * weights).sum(), tensors)
        found.append([output[real], *gradients])
    return max(float((ours - theirs).detach().abs().max()) for ours, theirs in zip(*found, strict=True))


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("r", [1, 2, 3, 5, 40, LENGTH, LENGTH + 9, 2 * LENGTH])
def test_blocks_equal_a_full_mask(r, is_causal):
    for attention_mask in (None, padding()):
        assert largest_difference(r, is_causal, attention_mask) < 1e-13


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("shift", [1, -1])
def test_a_window_that_is_off_by_one_is_found_out(shift, is_causal, monkeypatch):
    monkeypatch.setattr(attention_vaswani, "reach_of", lambda r, is_causal: reach_of(r + shift, is_causal))
    assert largest_difference(5, is_causal, None) > 1e-2


@pytest.mark.parametrize("length", [1, 7, 50])
def test_later_queries_of_a_cache_see_what_is_before_them(length):
    query, key, value = states(length)
    module, first = restriction_of(5, is_causal=True), LENGTH - length
    output, _ = banded_attention_forward(module, query, key, value, None, first_position=first)
    assert_close(output, dense(query, key, value, None, 5, True, first))
    # A static cache has room for more, and says where it is as a tensor; its mask may end before it does.
    key, value = (torch.cat([cached, 9 + torch.zeros_like(cached)], dim=2) for cached in (key, value))
    for mask in (None, torch.ones(2, LENGTH, dtype=torch.bool)):
        static, _ = banded_attention_forward(module, query, key, value, mask, first_position=torch.tensor(first))
        assert_close(static, output)


def test_it_compiles_to_one_graph():
    compiled = torch.compile(banded_attention_forward, fullgraph=True, backend="eager")
    module, (query, key, value) = restriction_of(5, is_causal=True), states(40)
    # Where a static cache is up to is a tensor, or each step would be compiled anew.
    options = {"first_position": torch.tensor(LENGTH - 40)}
    expected, _ = banded_attention_forward(module, query, key, value, padding(), **options)
    assert_close(compiled(module, query, key, value, padding(), **options)[0], expected)


def test_padding_gets_finite_values_and_gradients():
    tensors = states()
    output, _ = banded_attention_forward(restriction_of(3, False), *tensors, torch.zeros(2, LENGTH, dtype=torch.bool))
    output.sum().backward()
    assert all(tensor.isfinite().all() for tensor in (output, *(each.grad for each in tensors)))


def test_dropout_is_on_the_weights():
    query, key, value = states()
    output, _ = banded_attention_forward(restriction_of(1, True), query, key, value, None, dropout=0.5)
    kept = output / value.transpose(1, 2)  # each position sees itself alone, with a weight of 1
    assert_close(kept.round().unique(), torch.tensor([0.0, 2.0], dtype=torch.float64))
    assert_close(kept, kept.round())
    assert (kept == kept[..., :1]).all()


class LargestTensor(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that is made."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **kwargs or {})
        made = [tensor.numel() for tensor in tree_leaves(result) if isinstance(tensor, torch.Tensor)]
        self.numel = max(self.numel, *made, 0)
        return result


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_no_matrix_of_all_positions_is_made_forward_or_backward(implementation, random_model):
    model = random_model(attention_restriction=8, decoder_layers=1, encoder_layers=1).train()
    model.set_attn_implementation(implementation)
    ids, few = torch.randint(1, 22, (1, 1200)), torch.randint(1, 22, (1, 2))
    for inputs in ({"input_ids": ids, "labels": few}, {"input_ids": few, "labels": ids}):
        mask = torch.ones_like(inputs["input_ids"])
        mask[:, -1] = 0
        with LargestTensor() as largest:
            model(**inputs, attention_mask=mask).loss.backward()
        assert (largest.numel >= 1200**2) == (implementation == "eager")
        # Two heads of 1,216 queries that see 39 keys, or an inner layer of 32.
        assert largest.numel <= 2 * 1216 * 39 or implementation == "eager"


def anything(*given, **named):
    raise AssertionError("is never called")


@pytest.mark.parametrize("name", ["flex_attention", "flash_attention_2", "ones_own", "sdpa"])
def test_a_back_end_without_restriction_is_refused_by_name(name):
    attention = ALL_ATTENTION_FUNCTIONS.get(name, anything) if name != "sdpa" else anything
    with pytest.raises(
        ValueError, match=f"attention_restriction=4 .* attn_implementation='{name}'.*'sdpa' or 'eager'"
    ):
        restricted(attention, name, 4)
    assert restricted(anything, "eager", 4) is anything  # its mask is ours
    assert restricted(ALL_ATTENTION_FUNCTIONS["sdpa"], "sdpa", 4) is banded_attention_forward
