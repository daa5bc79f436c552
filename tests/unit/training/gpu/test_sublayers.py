"""Sublayers with written-out gradients against PyTorch's, in float64. A whole model of them: `test_objective.py`."""

import packed_operations
import pytest
import torch
from torch import nn

from training.gpu.operations import same_sentence
from training.gpu.sublayers import (
    Attention,
    AttentionSublayer,
    FeedForwardSublayer,
    Linear,
    Residual,
    RoundedWeights,
    SourceProjection,
)


RESIDUAL = Residual(torch.tensor(3), 0.3, 0.01)


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    packed_operations.stand_in(monkeypatch)
    monkeypatch.setattr(torch, "randn", lambda *shape: torch.empty(shape, dtype=torch.float64).normal_())
    torch.manual_seed(1)


def linears(*shapes, bias=True) -> list[nn.Linear]:
    return [nn.Linear(*shape, bias=bias).double() for shape in shapes]


def rounded(*groups) -> list[Linear]:
    weights = RoundedWeights(torch.float64)
    made = [Linear.of(group, weights) for group in groups]
    weights.write()
    return made


def compare(found: torch.Tensor, wanted: torch.Tensor, inputs) -> None:
    weight = torch.randn(*wanted.shape)
    torch.testing.assert_close(found, wanted)
    gradients = [torch.autograd.grad((each * weight).sum(), inputs) for each in (found, wanted)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def close(states, output, norm):
    dropped = packed_operations.dropped(output, RESIDUAL.seed, RESIDUAL.p)
    return nn.functional.layer_norm(states + dropped, norm[0].shape, *norm, RESIDUAL.eps)


def test_weights_are_copied_side_by_side_as_they_are_when_asked():
    first, second = linears((3, 2), (3, 4))
    weights = RoundedWeights(torch.bfloat16)
    both, alone = Linear.of([first, second], weights), Linear.of(linears((2, 2), bias=False), weights)
    with torch.no_grad():
        first.weight.fill_(1.001)
    weights.write()
    assert both.weight.equal(torch.cat([first.weight, second.weight]).bfloat16())
    assert both.bias.equal(torch.cat([first.bias, second.bias]).bfloat16())
    assert alone.bias is None
    assert not both.weight.requires_grad


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("is_crossed", [False, True])
def test_attention(is_crossed, bias):
    query, key, value, out = linears((6, 8), (6, 8), (6, 4), (4, 6), bias=bias)
    states, source = torch.randn(9, 6).requires_grad_(), torch.randn(7, 6).requires_grad_()
    sentences, others = torch.tensor([0, 0, 1, 1, 1, 2, 2, 3, 3]), torch.tensor([0, 1, 1, 1, 2, 3, 3])
    seen = same_sentence(sentences, others if is_crossed else sentences)
    norm = [torch.randn(6).requires_grad_() for _ in range(2)]
    projection, out_linear, source_linear = rounded(
        [query] if is_crossed else [query, key, value], [out], [key, value]
    )
    how = Attention(projection, out_linear, [8, 8, 4], 2, 0.3, seen)
    keys_from = source if is_crossed else states
    biases = [] if not bias else [query.bias, value.bias, out.bias]
    inputs = [states, *norm, query.weight, key.weight, value.weight, out.weight, *biases]
    inputs += [source] if is_crossed else []
    key_value = None
    if is_crossed:
        [key_value] = SourceProjection.apply(source_linear, [12], source, key.weight, value.weight)
    found = AttentionSublayer.apply(
        how, RESIDUAL, states, key_value, query.bias, value.bias, out.weight, out.bias, *norm,
        *(module.weight for module in ([query] if is_crossed else [query, key, value])),
    )  # fmt: skip
    projected = query(states), key(keys_from), value(keys_from)
    context, _ = packed_operations.attend(projected, seen, 2, 0.3)
    compare(found, close(states, out(context), norm), inputs)


def test_keys_and_values_of_all_layers_are_one_product():
    modules = linears((6, 4), (6, 2), (6, 4), (6, 2))
    [linear] = rounded(modules)
    states = torch.randn(5, 6).requires_grad_()
    weights = [module.weight for module in modules]
    found = SourceProjection.apply(linear, [6, 6], states, *weights)
    assert [each.shape for each in found] == [(5, 6), (5, 6)]
    compare(torch.cat(found, 1), torch.cat([module(states) for module in modules], 1), [states, *weights])


def test_a_feed_forward_network(monkeypatch):
    """What its inner dropout keeps is chosen here, for both."""
    first, second = linears((6, 10), (10, 6))
    states, kept = torch.randn(9, 6).requires_grad_(), torch.randn(9, 10) > -0.5
    norm = [torch.randn(6).requires_grad_() for _ in range(2)]
    monkeypatch.setattr(nn.functional, "dropout", lambda active, p, **_: active * kept / (1 - p))
    linear_1, linear_2 = rounded([first], [second])
    weights = first.weight, first.bias, second.weight, second.bias
    found = FeedForwardSublayer.apply(linear_1, linear_2, 0.2, RESIDUAL, states, *weights, *norm)
    wanted = close(states, second(first(states).relu() * kept / 0.8), norm)
    compare(found, wanted, [states, *weights, *norm])
