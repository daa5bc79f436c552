"""Attention as a function: its values on numbers small enough to check by hand."""

import math

import pytest
import torch
from torch import nn

from vaswani.models.attention_vaswani import eager_attention_forward


def test_weights_are_the_softmax_of_scaled_products():
    query, value = torch.tensor([[[[2.0, 0.0]]]]), torch.tensor([[[[1.0], [5.0]]]])
    key = torch.tensor([[[[math.log(3) / 2, 7.0], [0.0, 9.0]]]])
    output, weights = eager_attention_forward(nn.Identity().eval(), query, key, value, None, scaling=1.0)
    assert weights.flatten().tolist() == pytest.approx([0.75, 0.25])
    assert output.flatten().tolist() == pytest.approx([0.75 * 1 + 0.25 * 5])
    _, scaled = eager_attention_forward(nn.Identity().eval(), query, key, value, None)
    odds = math.sqrt(3 ** math.sqrt(2))
    assert scaled.flatten().tolist() == pytest.approx([odds / (1 + odds), 1 / (1 + odds)])
