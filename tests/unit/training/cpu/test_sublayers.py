"""Sublayers alone; with all dropouts, and in whole models, they are tested in `test_model.py`."""

import pytest
import torch
from torch.nn.functional import layer_norm, linear

from training.cpu import kernels
from training.cpu.sublayers import FeedForwardSublayer, Options, columns


def test_queries_keys_and_values_are_columns_of_one_product_or_of_two():
    whole = torch.arange(18.0).view(2, 9)
    for products, widths in (([whole], [[2, 3, 4]]), ([whole[:, :2], whole[:, 2:]], [[2], [3, 4]])):
        found = columns(products, widths)
        assert torch.equal(torch.cat(found, dim=1), whole)
        assert [part.shape[1] for part in found] == [2, 3, 4]
        assert found.value.data_ptr() == whole[:, 5:].data_ptr()  # nothing is copied


@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 0.02), (torch.float32, 1e-5)])
def test_the_feed_forward_sublayer_and_its_gradients(dtype, most):
    torch.manual_seed(0)
    rows, sizes = 70, [(48, 16), (48,), (16, 48), (16,), (16,), (16,)]
    weights = [torch.randn(size).requires_grad_() for size in sizes]
    states = torch.randn(kernels.padded(rows), 16).requires_grad_()
    rounded = states.detach().to(dtype).requires_grad_()
    output, half = FeedForwardSublayer.apply(states, rounded, *weights, Options(rows, 0.0, 0.0, 1e-5))
    (output[:rows].sum() + (half[:rows].float() ** 2).sum()).backward()

    exact = [each.detach().double().requires_grad_() for each in (states[:rows], rounded[:rows], *weights)]
    inner = linear(linear(exact[1], *exact[2:4]).relu(), *exact[4:6])
    wanted = layer_norm(exact[0] + inner, [16], *exact[6:], 1e-5)
    (wanted.sum() + (wanted**2).sum()).backward()
    for found, each in zip((states, rounded, *weights), exact, strict=True):
        error = found.grad[: len(each)].double() - each.grad
        assert error.norm() < most * each.grad.norm()
