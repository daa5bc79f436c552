"""The sublayers of `modeling_vaswani.py` (section 3.1), with gradients written out, for training on a GPU.

Few operations are left for Python to start, and nothing to compile. The products are PyTorch's, what lies between them
is `operations.py`'s. States are in the products' type, and so are the weights by which they are multiplied: rounded
copies of those that are trained, to which autograd casts the gradients.

N and M are the rows of all queries and of all keys of a batch.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from training.gpu import operations
from training.gpu.operations import Normed, Projected, Seen


Gradients = tuple[torch.Tensor | None, ...]


class RoundedWeights:
    """Copies of a model's weights in the type of the products, those that are multiplied at once one above the other.

    They live as long as the model, and are written anew for each batch, all together.
    """

    def __init__(self, dtype: torch.dtype):
        self.dtype = dtype
        self.weights: list[torch.Tensor] = []
        self.copies: list[torch.Tensor] = []

    def join(self, weights: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return what will be the copy of several weights."""
        heights = [len(weight) for weight in weights]
        copy = torch.empty(sum(heights), *weights[0].shape[1:], dtype=self.dtype, device=weights[0].device)
        self.weights += weights
        self.copies += copy.split(heights)
        return copy

    @torch.no_grad()
    def write(self) -> None:
        """Copy the weights as they are now."""
        torch._foreach_copy_(self.copies, self.weights)


class Linear(NamedTuple):
    """Rounded copies of the weights of one or of several linear maps of the same states."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    @classmethod
    def of(cls, modules: Sequence[nn.Linear], rounded: RoundedWeights) -> "Linear":
        """Join the weights of modules, which have biases all of them or none."""
        biases = [module.bias for module in modules if module.bias is not None]
        return cls(rounded.join([module.weight for module in modules]), rounded.join(biases) if biases else None)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """Return W x + b, (N, F), of (N, D) states."""
        return nn.functional.linear(states, self.weight, self.bias)


class Residual(NamedTuple):
    """How a sublayer ends: the seed of its dropout (one integer), and its probability; eps of layer normalization."""

    seed: torch.Tensor
    p: float
    eps: float


class Attention(NamedTuple):
    """What an attention sublayer does, apart from the weights that are trained.

    Attributes
    ----------
    projection, out : Linear
        To queries, and in self-attention to keys and values; and of the output of all heads.
    widths : sequence of int
        Of queries, keys and values, of all heads together.
    heads : int
    scale : float
        d_k^-0.5.
    seen : Seen
    """

    projection: Linear
    out: Linear
    widths: Sequence[int]
    heads: int
    scale: float
    seen: Seen

    def parts(self, projected: torch.Tensor, key_value: torch.Tensor | None) -> Projected:
        """Return queries, keys and values, or their gradients, as columns of one matrix or of two."""
        if key_value is None:
            return Projected(*projected.split(self.widths, dim=1))
        return Projected(projected, *key_value.split(self.widths[1:], dim=1))


class AttentionSublayer(torch.autograd.Function):
    """LayerNorm(x + Dropout(MultiHead(x, y, y))), sections 3.2.2 and 3.2.3, where y is x or the encoder's output."""

    @staticmethod
    def forward(
        ctx: Any,
        attention: Attention,
        residual: Residual,
        states: torch.Tensor,
        key_value: torch.Tensor | None,
        q_bias: torch.Tensor | None,
        v_bias: torch.Tensor | None,
        out_weight: torch.Tensor,
        out_bias: torch.Tensor | None,
        gain: torch.Tensor,
        bias: torch.Tensor,
        *weights: torch.Tensor,
    ) -> torch.Tensor:
        """Return states (N, D) of such states.

        Where keys and values are not of the same states, they are given side by side, (M, H * (d_k + d_v)). The
        weights are those of queries, and where they are of the same states, of keys and of values.
        """
        projected = attention.projection(states)
        parts = attention.parts(projected, key_value)
        context, logsumexp = operations.attend(parts, attention.seen, attention.heads, attention.scale)
        normed = operations.add_and_norm(
            states, attention.out(context), gain, bias, residual.seed, residual.eps, residual.p
        )
        ctx.attention, ctx.residual, ctx.has_bias = attention, residual, q_bias is not None
        ctx.save_for_backward(states, projected, key_value, context, logsumexp, gain, *normed[1:])
        return normed.output

    @staticmethod
    def backward(ctx: Any, d_output: torch.Tensor) -> Gradients:
        """Return the gradients."""
        attention, residual = ctx.attention, ctx.residual
        states, projected, key_value, context, logsumexp, gain, *kept = ctx.saved_tensors
        d_states, d_sublayer, (d_gain, d_bias, d_out_bias) = operations.add_and_norm_backward(
            d_output.contiguous(), Normed(d_output, *kept), gain, residual.seed, residual.p
        )
        d_projected = torch.empty_like(projected)
        d_key_value = None if key_value is None else key_value.new_empty(key_value.shape)
        d_q_bias, d_v_bias = operations.attend_backward(
            attention.parts(projected, key_value),
            attention.seen,
            attention.heads,
            attention.scale,
            context,
            logsumexp,
            d_sublayer @ attention.out.weight,
            into=attention.parts(d_projected, d_key_value),
        )
        if not ctx.has_bias:
            d_q_bias = d_v_bias = d_out_bias = None
        return (
            None,
            None,
            d_states.addmm_(d_projected, attention.projection.weight),
            d_key_value,
            d_q_bias,
            d_v_bias,
            operations.weight_gradient(d_sublayer, context),
            d_out_bias,
            d_gain,
            d_bias,
            *operations.weight_gradient(d_projected, states).split(attention.widths[: 3 if key_value is None else 1]),
        )


class FeedForwardSublayer(torch.autograd.Function):
    """LayerNorm(x + Dropout(FFN(x))), section 3.3."""

    @staticmethod
    def forward(
        ctx: Any,
        linear_1: Linear,
        linear_2: Linear,
        inner_dropout: float,
        residual: Residual,
        states: torch.Tensor,
        weight_1: torch.Tensor,
        bias_1: torch.Tensor,
        weight_2: torch.Tensor,
        bias_2: torch.Tensor,
        gain: torch.Tensor,
        bias: torch.Tensor,
    ) -> torch.Tensor:
        """Return states (N, D) of such states; `inner_dropout` is the probability of that behind ReLU."""
        assert linear_1.bias is not None
        active = torch._addmm_activation(linear_1.bias, states, linear_1.weight.T)  # with ReLU in the product's kernel
        active = nn.functional.dropout(active, inner_dropout, training=True, inplace=True)
        normed = operations.add_and_norm(states, linear_2(active), gain, bias, residual.seed, residual.eps, residual.p)
        ctx.linear_1, ctx.linear_2, ctx.residual = linear_1, linear_2, residual
        ctx.inner_scale = 1 / (1 - inner_dropout)
        ctx.save_for_backward(states, active, gain, *normed[1:])
        return normed.output

    @staticmethod
    def backward(ctx: Any, d_output: torch.Tensor) -> Gradients:
        """Return the gradients."""
        states, active, gain, *kept = ctx.saved_tensors
        d_states, d_sublayer, (d_gain, d_bias, d_bias_2) = operations.add_and_norm_backward(
            d_output.contiguous(), Normed(d_output, *kept), gain, ctx.residual.seed, ctx.residual.p
        )
        d_active = d_sublayer @ ctx.linear_2.weight
        if ctx.inner_scale != 1:
            d_active *= ctx.inner_scale  # what was dropped is zero, and so has no gradient, as if it were not active
        d_bias_1 = operations.relu_backward_(d_active, active)
        d_weight_1 = operations.weight_gradient(d_active, states)
        d_weight_2 = operations.weight_gradient(d_sublayer, active)
        d_states.addmm_(d_active, ctx.linear_1.weight)
        return None, None, None, None, d_states, d_weight_1, d_bias_1, d_weight_2, d_bias_2, d_gain, d_bias


class SourceProjection(torch.autograd.Function):
    """Keys and values of the encoder's output for all layers of the decoder, as one product: section 3.2.3."""

    @staticmethod
    def forward(
        ctx: Any, linear: Linear, widths: Sequence[int], states: torch.Tensor, *weights: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return keys and values side by side, a matrix (M, width) for each layer, of (M, D) states.

        The weights are of keys and values of each layer in turn. The gradients of the values' biases are
        `AttentionSublayer`'s.
        """
        ctx.linear, ctx.heights = linear, [len(weight) for weight in weights]
        ctx.save_for_backward(states)
        return linear(states).split(widths, dim=1)

    @staticmethod
    def backward(ctx: Any, *d_key_values: torch.Tensor) -> Gradients:
        """Return the gradients."""
        [states] = ctx.saved_tensors
        d_projected = torch.cat(d_key_values, dim=1)
        d_weight = operations.weight_gradient(d_projected, states)
        return None, None, d_projected @ ctx.linear.weight, *d_weight.split(ctx.heights)
