import math

import pytest
import torch

from training.tables.complexity import softmax
from training.tables.complexity.softmax import KEYS, QUERIES, SCORES, measure_saturation


@pytest.mark.parametrize("width", [4, 64, 256])
def test_the_variance_of_a_dot_product_is_d_k_and_that_of_a_scaled_one_1(width):
    assert measure_saturation("dot product", width).score_variance == pytest.approx(width, rel=0.1)
    assert measure_saturation("scaled dot product", width).score_variance == pytest.approx(1, rel=0.1)
    assert measure_saturation("additive", width).score_variance < 2


def test_without_scaling_a_wide_softmax_is_peaked_and_has_hardly_a_gradient():
    narrow, wide = (measure_saturation("dot product", width) for width in (4, 512))
    assert wide.softmax_entropy < narrow.softmax_entropy / 5
    assert wide.softmax_gradient_median < narrow.softmax_gradient_median / 20
    for name in ("scaled dot product", "additive"):
        narrow, wide = (measure_saturation(name, width) for width in (4, 512))
        assert wide.softmax_entropy == pytest.approx(narrow.softmax_entropy, rel=0.1)
        assert wide.softmax_gradient_median == pytest.approx(narrow.softmax_gradient_median, rel=0.2)


def test_figures_are_those_of_the_softmax_and_its_jacobian(monkeypatch):
    scores = torch.randn(5, 7) * 3
    monkeypatch.setitem(SCORES, "given", lambda query, key: scores)
    saturation = measure_saturation("given", 2)
    jacobians = [torch.func.jacrev(lambda row: row.softmax(-1))(row) for row in scores.double()]
    norms = torch.stack([jacobian.norm() for jacobian in jacobians])
    entropies = torch.distributions.Categorical(logits=scores.double()).entropy()
    assert saturation.score_variance == pytest.approx(scores.var().item(), rel=1e-5)
    assert saturation.softmax_entropy == pytest.approx(entropies.mean().item(), rel=1e-5)
    assert saturation.softmax_gradient_mean == pytest.approx(norms.mean().item(), rel=1e-5)
    assert saturation.softmax_gradient_median == pytest.approx(norms.median().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("scores", "entropy", "gradient"),
    [
        ([0.0] * KEYS, math.log(KEYS), math.sqrt(KEYS - 1) / KEYS),
        ([1e4] + [0.0] * (KEYS - 1), 0.0, 0.0),
        ([1e4, 1e4] + [0.0] * (KEYS - 2), math.log(2), 0.5),
    ],
)
def test_the_extremes_are_known(scores, entropy, gradient, monkeypatch):
    monkeypatch.setitem(SCORES, "given", lambda query, key: torch.tensor([scores]))
    saturation = measure_saturation("given", 2)
    assert saturation.softmax_entropy == pytest.approx(entropy, abs=1e-9)
    assert saturation.softmax_gradient_median == pytest.approx(gradient, abs=1e-9)


def test_every_query_has_keys_of_its_own():
    query, key = torch.randn(QUERIES, 3), torch.randn(QUERIES, KEYS, 3)
    assert torch.allclose(softmax.dot_product(query, key), (query[:, None] * key).sum(-1), atol=1e-5)
    assert torch.allclose(softmax.scaled_dot_product(query, key), softmax.dot_product(query, key) / 3**0.5)
    assert softmax.additive(query, key).shape == (QUERIES, KEYS)
