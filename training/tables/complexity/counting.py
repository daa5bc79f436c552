"""What can be counted of a layer, and is the same on every machine: operations, dependent ones, hops of a signal."""

import math
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from training.tables.complexity.layers import Layer, Recurrent
from training.tables.complexity.rows import Row, Size


# Nodes of the autograd graph that compute nothing: inputs and weights, and other views of the same numbers.
LEAF = ("AccumulateGrad",)
VIEWS = ("Alias", "Expand", "Permute", "ReshapeAlias", "Select", "Slice", "Split", "SplitWithSizes", "Squeeze", "T")
MORE_VIEWS = ("Transpose", "Unbind", "Unfold", "UnsafeSplit", "UnsafeView", "Unsqueeze", "View")
NO_OPERATION = {*LEAF, *VIEWS, *MORE_VIEWS}
# Steps of a recurrence that are counted; each further one costs as much as the difference.
FEW_STEPS, MORE_STEPS = 4, 8


def _convolution_backward_flops(gradient: Any, x: Any, weight: Any, *details: Any, **_: Any) -> int:
    """Count what torch 2.13 gets wrong for channels apart: each of the two gradients costs as much as the output."""
    wanted = details[-1]  # of input, weight, bias
    return sum(wanted[:2]) * conv_flop_count(x, weight, gradient)


def on_paper(row: Row, size: Size) -> tuple[Layer, torch.Tensor]:
    """Return a layer and one sequence on the meta device: shapes without numbers.

    There, PyTorch takes every recurrence apart into its operations; the fused kernels of CPUs and GPUs hide them.
    """
    with torch.device("meta"):
        return row.make(size), torch.empty(1, size.n, size.d, requires_grad=True)


def count_flops(row: Row, size: Size) -> tuple[int, int]:
    """Return the operations of the forward pass, and of forward and backward pass together, for one sequence.

    PyTorch counts matrix products and convolutions, at 2 operations for a multiplication and addition, and also what
    padding multiplies with zero. Softmax, tanh and sums are not counted. Counting a recurrence takes a second for a
    hundred steps, which all cost the same: so long ones are reckoned from short ones.
    """
    layer, x = on_paper(row, size)
    if not isinstance(layer, Recurrent) or size.n <= MORE_STEPS:
        return _count_flops(layer, x)
    few, more = (_count_flops(layer, x[:, :steps]) for steps in (FEW_STEPS, MORE_STEPS))
    a_step = [(high - low) // (MORE_STEPS - FEW_STEPS) for low, high in zip(few, more, strict=True)]
    forward, both = (start + (size.n - FEW_STEPS) * step for start, step in zip(few, a_step, strict=True))
    return forward, both


def _count_flops(layer: Layer, x: torch.Tensor) -> tuple[int, int]:
    backward = {torch.ops.aten.convolution_backward: _convolution_backward_flops}
    with FlopCounterMode(display=False, custom_mapping=backward) as counter:
        output = layer(x)
        forward = counter.get_total_flops()
        output.sum().backward()
    return forward, counter.get_total_flops()


def count_sequential(row: Row, size: Size) -> int:
    """Return the length of the longest chain of operations, each of which needs the result of the one before.

    It is read from the autograd graph of the forward pass. An operation of PyTorch, such as a matrix product or a
    softmax, counts as one, however many numbers it makes at once; a view of the same numbers counts as none.
    """
    layer, x = on_paper(row, size)
    last = layer(x).grad_fn
    lengths: dict[Any, int] = {}
    stack = [last]
    while stack:
        node = stack[-1]
        sources = [source for source, _ in node.next_functions if source is not None]
        waiting = [source for source in sources if source not in lengths]
        if waiting:
            stack += waiting
            continue
        stack.pop()
        lengths[node] = max((lengths[source] for source in sources), default=0) + is_operation(node)
    return lengths[last]


def is_operation(node: Any) -> bool:
    """Say whether a node of the autograd graph computes something."""
    return node.name().split("::")[-1].split("Backward")[0] not in NO_OPERATION


def count_hops(row: Row, size: Size) -> float:
    """Return the maximum path length: how many hops the last output is away from the first input.

    A hop is a layer, or in a recurrent layer a step in time. Hops are added until the gradient of the last output by
    the first input is not zero. Where another hop brings no nearer input within reach, none ever will: infinity.
    """
    torch.manual_seed(0)
    layer = row.make(size).double()
    x = torch.randn(1, size.n, size.d, dtype=torch.float64, requires_grad=True)
    reached = size.n
    for hops, output in enumerate(layer.after_each_hop(x), start=1):
        (gradient,) = torch.autograd.grad(output[0, -1].sum(), x, retain_graph=True)
        first = int(gradient[0].abs().sum(dim=-1).nonzero()[0])
        if first == 0:
            return hops
        if first == reached:
            return math.inf
        reached = first
    raise AssertionError("hops never end")
