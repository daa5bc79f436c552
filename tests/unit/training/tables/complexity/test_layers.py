import itertools

import pytest
import torch
from torch.nn.functional import conv1d, scaled_dot_product_attention

from training.tables.complexity.layers import (
    BlockSelfAttention,
    Convolution,
    DilatedConvolution,
    ProjectedSelfAttention,
    Recurrent,
    RestrictedSelfAttention,
    SelfAttention,
    SeparableConvolution,
)
from training.tables.complexity.rows import ROWS


LENGTH, WIDTH = 11, 6


@pytest.fixture
def x() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)


def masked_attention(x: torch.Tensor, legal: torch.Tensor) -> torch.Tensor:
    return scaled_dot_product_attention(x, x, x, attn_mask=legal)


def close(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.shape == second.shape and torch.allclose(first, second, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ROWS)
def test_as_many_positions_come_out_as_went_in_and_every_weight_has_a_gradient(name, x):
    layer = ROWS[name].make(ROWS[name].size(LENGTH, WIDTH, k=3, r=4)).double()
    output = layer(x.requires_grad_())
    assert output.shape == x.shape
    output.pow(2).sum().backward()
    assert all(weight.grad.abs().sum() > 0 for weight in [x, *layer.parameters()])


def test_self_attention_is_equation_1_with_the_input_as_queries_keys_and_values(x):
    assert close(SelfAttention()(x), torch.softmax(x @ x.transpose(1, 2) / WIDTH**0.5, dim=-1) @ x)


def test_projections_come_before_and_after(x):
    layer = ProjectedSelfAttention(WIDTH).double()
    query, key, value = (x @ projection.weight.T for projection in (layer.query, layer.key, layer.value))
    assert close(layer(x), scaled_dot_product_attention(query, key, value) @ layer.output.weight.T)


@pytest.mark.parametrize("r", [1, 2, 5, 6])
def test_restricted_attention_sees_r_positions_one_more_before_than_behind_if_even(r, x):
    distance = torch.arange(LENGTH) - torch.arange(LENGTH)[:, None]
    legal = (-(r // 2) <= distance) & (distance <= (r - 1) // 2)
    assert legal[LENGTH // 2].sum() == r
    assert close(RestrictedSelfAttention(r)(x), masked_attention(x, legal))
    assert not close(RestrictedSelfAttention(r + 1)(x), masked_attention(x, legal))


@pytest.mark.parametrize("r", [1, 4, 11, 20])
def test_blocks_see_only_themselves_the_last_one_too(r, x):
    block = torch.arange(LENGTH) // r
    legal = block == block[:, None]
    assert close(BlockSelfAttention(r)(x), masked_attention(x, legal))
    if r < LENGTH:
        assert not close(BlockSelfAttention(r + 1)(x), masked_attention(x, legal))


def test_elmans_recurrence_goes_from_left_to_right(x):
    layer = Recurrent(WIDTH).double()
    weights = layer.recurrence
    state, states = x.new_zeros(2, WIDTH), []
    for position in range(LENGTH):
        from_input = x[:, position] @ weights.weight_ih_l0.T + weights.bias_ih_l0
        state = torch.tanh(from_input + state @ weights.weight_hh_l0.T + weights.bias_hh_l0)
        states.append(state)
    assert close(layer(x), torch.stack(states, dim=1))


@pytest.mark.parametrize("name", ["recurrent", "lstm"])
def test_a_state_that_was_handed_on_n_times_has_come_all_the_way(name, x):
    layer = ROWS[name].make(ROWS[name].size(LENGTH, WIDTH, 3, 1)).double()
    *_, before, last = itertools.islice(layer.after_each_hop(x), LENGTH)
    assert close(last, layer(x))
    assert close(before[:, :-1], layer(x)[:, :-1])
    assert not close(before, layer(x))


def test_other_layers_are_stacked(x):
    layer = SelfAttention()
    _, second = itertools.islice(layer.after_each_hop(x), 2)
    assert close(second, layer(layer(x)))


def test_a_convolution_sees_k_positions_and_a_dilated_one_every_kth(x):
    for layer, dilation in ((Convolution(WIDTH, 3).double(), 1), (DilatedConvolution(WIDTH, 3).double(), 3)):
        weight, bias = layer.convolution.weight, layer.convolution.bias
        for position in range(LENGTH):
            seen = bias + sum(
                x[:, place] @ weight[:, :, index].T
                for index, place in enumerate(range(position - dilation, position + dilation + 1, dilation))
                if 0 <= place < LENGTH
            )
            assert close(layer(x)[:, position], seen)


def test_a_stack_of_dilated_convolutions_has_dilations_1_k_k_squared(x):
    layer = DilatedConvolution(WIDTH, 3).double()
    weight, bias = layer.convolution.weight, layer.convolution.bias
    padded = torch.nn.functional.pad(x.transpose(1, 2), (4, 4))
    expected = conv1d(conv1d(padded, weight, bias), weight, bias, dilation=3).transpose(1, 2)
    _, second = itertools.islice(layer.after_each_hop(x), 2)
    assert close(second, expected)


def test_a_separable_convolution_is_one_whose_kernel_is_a_product(x):
    layer = SeparableConvolution(WIDTH, 5).double()
    kernel = layer.pointwise.weight[:, :, None] * layer.depthwise.weight[:, 0]
    bias = layer.pointwise.weight @ layer.depthwise.bias + layer.pointwise.bias
    assert close(layer(x), conv1d(x.transpose(1, 2), kernel, bias, padding=2).transpose(1, 2))
