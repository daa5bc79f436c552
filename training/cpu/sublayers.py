"""The sublayers of `modeling_vaswani.py` (section 3.1), with gradients written out, for training on a CPU.

Each takes its input twice, in float32 for the residual and rounded for the products, and so gives its output. The
products are PyTorch's, what lies between them is `kernels.py`'s.

Axis letters: see `modeling_vaswani.py`. N and M are the positions of all queries and of all keys of a batch, each
with the rows that `kernels.padded` adds.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from training.cpu import kernels
from training.cpu.kernels import Biases, Dropout, Heads, Projected


Gradients = tuple[torch.Tensor | None, ...]


class Options(NamedTuple):
    """What a sublayer does, apart from its weights.

    Attributes
    ----------
    rows : int
        Positions of all queries of the batch, without rows behind them.
    dropout, inner_dropout : float
        Probabilities: of the sublayer's output, and of attention's weights or the feed-forward network's inner states.
    eps : float
        Of layer normalization.
    is_causal : bool, default=False
        Whether a query may see no later keys.
    """

    rows: int
    dropout: float
    inner_dropout: float
    eps: float
    is_causal: bool = False


class Embeddings(torch.autograd.Function):
    """Embeddings, scaled, and positions, with dropout: sections 3.4, 3.5 and 5.4. Both sides may share their table."""

    @staticmethod
    def forward(
        ctx: Any, table: torch.Tensor, pad: int, p: float, dtype: torch.dtype, *sides: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return the (N, D) states of each side, and the same rounded to `dtype`.

        A side is given as ids (rows,), their places (rows,) in their sentences, and positions (T, D).
        """
        ctx.scale, ctx.pad, ctx.table_shape = table.shape[1] ** 0.5, pad, table.shape
        ctx.sides = [(*sides[first : first + 3], Dropout.of(p)) for first in range(0, len(sides), 3)]
        return tuple(
            states
            for ids, places, positions, dropout in ctx.sides
            for states in kernels.embed(ids, places, table, positions, pad, ctx.scale, dropout, dtype)
        )

    @staticmethod
    def backward(ctx: Any, *d_states: torch.Tensor) -> Gradients:
        """Return the gradient of the table, and those of positions that are learned."""
        d_table, others = torch.zeros(ctx.table_shape), []
        for number, (ids, places, positions, dropout) in enumerate(ctx.sides):
            is_learned = ctx.needs_input_grad[6 + 3 * number]
            d_sums = torch.empty(len(ids), len(d_table[0])) if is_learned else None
            kernels.embed_backward(
                *d_states[2 * number : 2 * number + 2], ids, ctx.pad, ctx.scale, dropout, d_table, d_sums
            )
            d_positions = None if d_sums is None else torch.zeros_like(positions).index_add_(0, places, d_sums)
            others += [None, None, d_positions]
        return d_table, None, None, None, *others


class AttentionSublayer(torch.autograd.Function):
    """LayerNorm(x + Dropout(MultiHead(x, y, y))), sections 3.2.2 and 3.2.3, where y is x or the encoder's output."""

    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        rounded: torch.Tensor,
        source: torch.Tensor | None,
        rounded_source: torch.Tensor | None,
        q_weight: torch.Tensor,
        k_weight: torch.Tensor,
        v_weight: torch.Tensor,
        q_bias: torch.Tensor | None,
        k_bias: torch.Tensor | None,
        v_bias: torch.Tensor | None,
        out_weight: torch.Tensor,
        out_bias: torch.Tensor | None,
        gain: torch.Tensor,
        bias: torch.Tensor,
        heads: Heads,
        options: Options,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (N, D) states, and the same rounded, of such states, and of a source (M, D) if there is one.

        The gradient of `rounded_source` goes to `source`, so that those of all layers are added up in float32.
        """
        ctx.set_materialize_grads(False)
        weights, biases = [q_weight, k_weight, v_weight], Biases(q_bias, k_bias, v_bias)
        # One product for all that is projected from the same states.
        inputs, groups = [rounded], [weights]
        if rounded_source is not None:
            inputs, groups = [rounded, rounded_source], [weights[:1], weights[1:]]
        matrices, transposes = zip(*(kernels.round_both(group, rounded.dtype) for group in groups), strict=True)
        products = [each @ transpose for each, transpose in zip(inputs, transposes, strict=True)]
        ctx.widths = [[len(weight) for weight in group] for group in groups]
        ctx.heads = heads
        ctx.inner_dropout, ctx.dropout = Dropout.of(options.inner_dropout), Dropout.of(options.dropout)
        projected = columns(products, ctx.widths)
        context, attention = kernels.attention(projected, biases, heads, options.is_causal, ctx.inner_dropout)
        out_matrix, out_transpose = kernels.round_both([out_weight], rounded.dtype)
        found = kernels.add_norm(
            states, context @ out_transpose, out_bias, ctx.dropout, gain, bias, options.eps, options.rows
        )
        ctx.save_for_backward(
            found.normed, found.rstd, gain, context, attention, out_matrix, *biases, *inputs, *matrices, *products
        )
        return found.output, found.rounded

    @staticmethod
    def backward(ctx: Any, d_output: torch.Tensor | None, d_rounded: torch.Tensor | None) -> Gradients:
        """Return the gradients."""
        normed, rstd, gain, context, attention, out_matrix, *others = ctx.saved_tensors
        biases, others = Biases(*others[:3]), others[3:]
        count, heads, has_bias = len(others) // 3, ctx.heads, biases.query is not None
        inputs, matrices, products = others[:count], others[count : 2 * count], others[2 * count :]
        d_states, d_sublayer, d_gain, d_bias, d_out_bias = kernels.add_norm_backward(
            d_output, d_rounded, normed, rstd, ctx.dropout, gain
        )
        d_products = [torch.empty_like(product) for product in products]
        d_products[0][heads.queries.rows :] = 0
        d_products[-1][heads.keys.rows :] = 0
        kernels.attention_backward(
            columns(products, ctx.widths),
            biases,
            heads,
            attention,
            d_sublayer @ out_matrix,
            ctx.inner_dropout,
            into=columns(d_products, ctx.widths),
        )
        d_inputs, d_weights, d_biases = [], [], []
        for d_product, each, matrix, widths in zip(d_products, inputs, matrices, ctx.widths, strict=True):
            d_inputs.append(d_product @ matrix)
            d_weights += kernels.weight_gradient(each, d_product).split(widths)
            d_biases += kernels.sum_of_rows(d_product).split(widths) if has_bias else [None] * len(widths)
        return (
            d_states,
            d_inputs[0],
            d_inputs[1].float() if count == 2 else None,
            None,
            *d_weights,
            *d_biases,
            kernels.weight_gradient(context, d_sublayer),
            d_out_bias if has_bias else None,
            d_gain,
            d_bias,
            None,
            None,
        )


class FeedForwardSublayer(torch.autograd.Function):
    """LayerNorm(x + Dropout(FFN(x))), section 3.3."""

    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        rounded: torch.Tensor,
        weight_1: torch.Tensor,
        bias_1: torch.Tensor,
        weight_2: torch.Tensor,
        bias_2: torch.Tensor,
        gain: torch.Tensor,
        bias: torch.Tensor,
        options: Options,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (N, D) states, and the same rounded."""
        ctx.set_materialize_grads(False)
        ctx.inner_dropout, ctx.dropout = Dropout.of(options.inner_dropout), Dropout.of(options.dropout)
        (matrix_1, transpose_1), (matrix_2, transpose_2) = (
            kernels.round_both([each], rounded.dtype) for each in (weight_1, weight_2)
        )
        # This bias is added before the product is rounded: near zero, its sign decides.
        active = kernels.relu_(torch.addmm(bias_1.to(rounded.dtype), rounded, transpose_1), ctx.inner_dropout)
        found = kernels.add_norm(
            states, active @ transpose_2, bias_2, ctx.dropout, gain, bias, options.eps, options.rows
        )
        ctx.save_for_backward(found.normed, found.rstd, gain, rounded, active, matrix_1, matrix_2)
        return found.output, found.rounded

    @staticmethod
    def backward(ctx: Any, d_output: torch.Tensor | None, d_rounded: torch.Tensor | None) -> Gradients:
        """Return the gradients."""
        normed, rstd, gain, rounded, active, matrix_1, matrix_2 = ctx.saved_tensors
        d_states, d_sublayer, d_gain, d_bias, d_bias_2 = kernels.add_norm_backward(
            d_output, d_rounded, normed, rstd, ctx.dropout, gain
        )
        d_active = d_sublayer @ matrix_2
        d_bias_1 = kernels.relu_backward_(d_active, active, ctx.inner_dropout)
        d_weight_1 = kernels.weight_gradient(rounded, d_active)
        d_weight_2 = kernels.weight_gradient(active, d_sublayer)
        return d_states, d_active @ matrix_1, d_weight_1, d_bias_1, d_weight_2, d_bias_2, d_gain, d_bias, None


def columns(products: Sequence[torch.Tensor], widths: Sequence[Sequence[int]]) -> Projected:
    """Return queries, keys and values as columns of one or two matrices."""
    return Projected(
        *(part for product, each in zip(products, widths, strict=True) for part in product.split(each, dim=1))
    )
