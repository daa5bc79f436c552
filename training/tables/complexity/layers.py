"""The layers that section 4 compares, bare: no residual connection, no normalization, (B, n, d) in and out.

B sequences of n positions, each a vector of width d; k is the width of a convolution's kernel, r the size of the
neighborhood that restricted self-attention looks at.
"""

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.utils._pytree import tree_map

from vaswani.models.attention_vaswani import banded_attention_forward, eager_attention_forward


class Layer(nn.Module):
    """A layer, and what one gets by stacking it."""

    def after_each_hop(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the outputs of 1, 2, 3, ... such layers on top of each other, without end.

        All have the same weights, which matters neither to cost nor to which position is connected with which.
        """
        while True:
            x = self(x)
            yield x


class SelfAttention(Layer):
    """Scaled dot-product attention (Eq. 1) with one head, whose queries, keys and values are the input itself.

    So its operations are those that O(n^2 d) counts: the products Q K^T and the weights' with V.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Let every position attend to all of them."""
        return self.attend(x, x, x)

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Attend with one head."""
        output, _ = eager_attention_forward(self, query[:, None], key[:, None], value[:, None], None)
        return output.squeeze(2)


class ProjectedSelfAttention(SelfAttention):
    """Self-attention as a Transformer has it: with the projections W^Q, W^K, W^V and W^O of section 3.2.2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Project, attend, project."""
        return self.output(self.attend(self.query(x), self.key(x), self.value(x)))


class RestrictedSelfAttention(Layer):
    """Self-attention to the r positions around each, as the model has it with ``attention_restriction``: section 4."""

    is_causal = False

    def __init__(self, restriction: int) -> None:
        super().__init__()
        self.restriction = restriction

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Let every position attend to its neighborhood."""
        states = x[:, None]
        output, _ = banded_attention_forward(self, states, states, states, None)
        return output.squeeze(2)


class BlockSelfAttention(SelfAttention):
    """Self-attention within disjoint blocks of r positions, the other meaning that "restricted" has in teaching."""

    def __init__(self, block: int) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Let every position attend to its block; the last one may be shorter."""
        whole = x.shape[1] - x.shape[1] % self.block
        pieces = [x[:, :whole].reshape(-1, self.block, x.shape[2]), x[:, whole:]]
        outputs = [self.attend(piece, piece, piece) for piece in pieces if piece.numel()]
        return torch.cat([output.reshape(len(x), -1, x.shape[2]) for output in outputs], dim=1)


class Recurrent(Layer):
    """A recurrent layer: Elman's, h_t = tanh(W x_t + U h_{t-1} + b), or an LSTM."""

    def __init__(self, width: int, kind: Callable[..., nn.RNNBase] = nn.RNN) -> None:
        super().__init__()
        self.recurrence = kind(width, width, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Go through the positions one by one."""
        return self.recurrence(x)[0]

    def after_each_hop(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the outputs if the state is handed on over 1, 2, 3, ... positions and then forgotten.

        A hop here is a step in time: each position gets the state that its left neighbour had one hop ago, at first
        zeros. After n hops, the outputs are those of `forward`.
        """
        batch, length, width = x.shape
        inputs, state = x.reshape(batch * length, 1, width), None
        while True:
            output, state = self.recurrence(inputs, state)
            yield output.reshape(x.shape)
            state = tree_map(lambda part: self.hand_on(part, x.shape), state)  # an LSTM's are two

    @staticmethod
    def hand_on(state: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """Hand the state of each position to its right neighbour, and zeros to the first."""
        return nn.functional.pad(state.reshape(shape), (0, 0, 1, -1)).reshape(state.shape)


class Convolution(Layer):
    """A convolution over positions of odd kernel width k, with as many positions out as in."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.convolution = nn.Conv1d(width, width, kernel)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve."""
        return self.convolve(x, dilation=1, padding=self.kernel // 2)

    def convolve(self, x: torch.Tensor, dilation: int, padding: int) -> torch.Tensor:
        """Convolve with gaps of `dilation` - 1 positions, after `padding` zeros at either end."""
        weight, bias = self.convolution.weight, self.convolution.bias
        output = nn.functional.conv1d(x.transpose(1, 2), weight, bias, padding=padding, dilation=dilation)
        return output.transpose(1, 2)


class DilatedConvolution(Convolution):
    """A convolution of a stack in which layer l has dilation k^l, l = 0, 1, 2, ...; alone it is layer 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve as layer 1 does."""
        return self.convolve(x, dilation=self.kernel, padding=self.kernel * (self.kernel // 2))

    def after_each_hop(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the outputs of layer 0, of layers 0 and 1, and so on.

        The input is padded once for a whole stack, so that a signal can pass beyond the ends of the sequence: gaps
        soon are longer than it. Each position then reaches (k^L - 1) / 2 others on either side in L layers.
        """
        for layers in itertools.count(1):
            margin = (self.kernel**layers - 1) // 2
            output = nn.functional.pad(x, (0, 0, margin, margin))
            for depth in range(layers):
                output = self.convolve(output, dilation=self.kernel**depth, padding=0)
            yield output


class SeparableConvolution(Layer):
    """A convolution over positions in each channel alone, then one of width 1 over all channels."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.pointwise = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve over positions, then over channels."""
        return self.pointwise(self.depthwise(x.transpose(1, 2)).transpose(1, 2))
