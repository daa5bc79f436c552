import pytest
import torch

from vaswani.models.cpu_vaswani import dropout


@pytest.mark.parametrize("p", [0.1, 0.3, 0.99999])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_elements_are_dropped_with_probability_p_and_the_others_scaled(p, dtype):
    dropped = dropout(torch.ones(1000, 1001, dtype=dtype), p, training=True)
    kept = dropped[dropped != 0]
    assert dropped.dtype == dtype
    # Five standard deviations, and the rounding of p.
    assert abs(1 - len(kept) / dropped.numel() - p) <= 5 * (p * (1 - p) / dropped.numel()) ** 0.5 + 2**-17
    assert len(kept.unique()) == 1
    if p < 0.5:
        assert abs(kept[0].float() * (1 - p) - 1) < 2**-8  # bfloat16


def test_neighbors_are_dropped_independently():
    dropped = (dropout(torch.ones(1_000_000), 0.5, training=True) == 0).float()
    for distance in (1, 2, 3, 4, 8):  # four numbers come from a word
        both = (dropped[:-distance] * dropped[distance:]).mean()
        assert abs(both - 0.25) < 5 * 0.0005


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0, 4)])
def test_the_gradient_goes_where_the_values_went(shape):
    values = torch.ones(shape, requires_grad=True)
    dropped = dropout(values, 0.5, training=True)
    dropped.sum().backward()
    assert torch.equal(values.grad, dropped.detach())


def test_a_seed_decides_what_is_dropped():
    values, results = torch.ones(50, 51), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(dropout(values, 0.5, training=True))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_nothing_is_dropped_outside_of_training_or_with_probability_zero():
    values = torch.randn(50, 51)
    assert torch.equal(dropout(values, 0.5, training=False), values)
    assert torch.equal(dropout(values, 0.0, training=True), values)


def test_it_compiles_as_one_graph():
    compiled = torch.compile(lambda values: dropout(values, 0.5, training=True), backend="eager", fullgraph=True)
    assert (compiled(torch.ones(50, 51)) == 0).any()
