"""The sublayers of `modeling_vaswani.py` (section 3.1), with gradients written out, for training in bfloat16 on a CPU.

Each takes its input twice, in float32 for the residual and rounded to bfloat16 for the products, and so gives its
output. The products are PyTorch's, what lies between them is `kernels.py`'s.

Axis letters: see `modeling_vaswani.py`. N and M are the positions of all queries and of all keys of a batch, each
with the rows of padding that `kernels.padded` adds.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.functional import linear

from training.cpu import kernels
from training.cpu.kernels import Dropout, Projected, Shape


Gradients = tuple[torch.Tensor | None, ...]


class Options(NamedTuple):
    """What a sublayer does, apart from its weights.

    Attributes
    ----------
    rows : int
        Positions of all queries of the batch, without rows of padding.
    dropout, inner_dropout : float
        Probabilities: of the sublayer's output, and of attention's weights or the feed-forward network's inner states.
    eps : float
        Of layer normalization.
    mask : Tensor of shape (B, S) and type bool, default=None
        False where a key is padding.
    is_causal : bool, default=False
        Whether a query may see no later keys.
    """

    rows: int
    dropout: float
    inner_dropout: float
    eps: float
    mask: torch.Tensor | None = None
    is_causal: bool = False


class Embeddings(torch.autograd.Function):
    """Embeddings, scaled, and positions, with dropout: sections 3.4, 3.5 and 5.4. Both sides may share their table."""

    @staticmethod
    def forward(ctx: Any, table: torch.Tensor, pad: int, p: float, *sides: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the (N, D) states of each side, given as (B, T) ids and (T, D) positions, and the same rounded."""
        ctx.scale, ctx.pad, ctx.table_shape = table.shape[1] ** 0.5, pad, table.shape
        ctx.ids, positions = sides[::2], sides[1::2]
        ctx.dropouts = [Dropout.of(p) for _ in ctx.ids]
        found = zip(ctx.ids, positions, ctx.dropouts, strict=True)
        return tuple(
            states
            for ids, each, dropout in found
            for states in kernels.embed(ids, table, each, pad, ctx.scale, dropout)
        )

    @staticmethod
    def backward(ctx: Any, *d_states: torch.Tensor) -> Gradients:
        """Return the gradient of the table, and those of positions that are learned."""
        d_table, others = torch.zeros(ctx.table_shape), []
        for number, (ids, dropout) in enumerate(zip(ctx.ids, ctx.dropouts, strict=True)):
            is_learned = ctx.needs_input_grad[4 + 2 * number]
            d_sums = torch.empty(*ids.shape, len(d_table[0])) if is_learned else None
            kernels.embed_backward(
                *d_states[2 * number : 2 * number + 2], ids, ctx.pad, ctx.scale, dropout, d_table, d_sums
            )
            others += [None, None if d_sums is None else d_sums.sum(0)]
        return d_table, None, None, *others


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
        shape: Shape,
        options: Options,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (N, D) states, and the same rounded, of such states, and of a source (M, D) if there is one.

        The gradient of `rounded_source` goes to `source`, so that those of all layers are added up in float32.
        """
        ctx.set_materialize_grads(False)
        weights, biases = [q_weight, k_weight, v_weight], [q_bias, k_bias, v_bias]
        # One product for all that is projected from the same states.
        inputs, groups = [rounded], [slice(0, 3)]
        if rounded_source is not None:
            inputs, groups = [rounded, rounded_source], [slice(0, 1), slice(1, 3)]
        matrices = [stack(weights[group]) for group in groups]
        vectors = [stack(biases[group]) for group in groups]
        products = [linear(*each) for each in zip(inputs, matrices, vectors, strict=True)]
        ctx.widths = [[len(weight) for weight in weights[group]] for group in groups]
        ctx.has_bias = q_bias is not None
        projected = columns(products, ctx.widths)
        ctx.shape = shape
        ctx.shape.query_stride, ctx.shape.key_stride = projected.query.stride(0), projected.key.stride(0)
        ctx.inner_dropout, ctx.dropout = Dropout.of(options.inner_dropout), Dropout.of(options.dropout)
        heads, attention = kernels.attention(projected, shape, options.mask, options.is_causal, ctx.inner_dropout)
        projection = out_weight.to(torch.bfloat16)
        sublayer = linear(heads, projection, stack([out_bias]))
        found = kernels.add_norm(states, sublayer, ctx.dropout, gain, bias, options.eps, options.rows)
        ctx.save_for_backward(
            found.normed, found.rstd, gain, heads, attention, projection, *inputs, *matrices, *products
        )
        return found.output, found.rounded

    @staticmethod
    def backward(ctx: Any, d_output: torch.Tensor | None, d_rounded: torch.Tensor | None) -> Gradients:
        """Return the gradients."""
        normed, rstd, gain, heads, attention, projection, *others = ctx.saved_tensors
        count, shape = len(others) // 3, ctx.shape
        inputs, matrices, products = others[:count], others[count : 2 * count], others[2 * count :]
        d_states, d_sublayer, d_gain, d_bias, d_out_bias = kernels.add_norm_backward(
            d_output, d_rounded, normed, rstd, ctx.dropout, gain
        )
        d_products = [torch.empty_like(product) for product in products]
        d_products[0][shape.batch * shape.queries :] = 0
        d_products[-1][shape.batch * shape.keys :] = 0
        kernels.attention_backward(
            columns(products, ctx.widths),
            shape,
            attention,
            d_sublayer @ projection,
            ctx.inner_dropout,
            into=columns(d_products, ctx.widths),
        )
        d_inputs, d_weights, d_biases = [], [], []
        for d_product, each, matrix, widths in zip(d_products, inputs, matrices, ctx.widths, strict=True):
            d_inputs.append(d_product @ matrix)
            d_weights += (d_product.T @ each).float().split(widths)
            d_biases += kernels.sum_of_rows(d_product).split(widths) if ctx.has_bias else [None] * len(widths)
        return (
            d_states,
            d_inputs[0],
            d_inputs[1].float() if count == 2 else None,
            None,
            *d_weights,
            *d_biases,
            (d_sublayer.T @ heads).float(),
            d_out_bias if ctx.has_bias else None,
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
        matrix_1, matrix_2 = weight_1.to(torch.bfloat16), weight_2.to(torch.bfloat16)
        active = kernels.relu_(linear(rounded, matrix_1, bias_1.to(torch.bfloat16)), ctx.inner_dropout)
        sublayer = linear(active, matrix_2, bias_2.to(torch.bfloat16))
        found = kernels.add_norm(states, sublayer, ctx.dropout, gain, bias, options.eps, options.rows)
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
        d_weights = [(d_active.T @ rounded).float(), (d_sublayer.T @ active).float()]
        return d_states, d_active @ matrix_1, d_weights[0], d_bias_1, d_weights[1], d_bias_2, d_gain, d_bias, None


def stack(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """Return matrices, or vectors, one below the other in bfloat16. Where the first is None, all are."""
    if parts[0] is None or len(parts) == 1:
        return None if parts[0] is None else parts[0].to(torch.bfloat16)
    lengths = [len(part) for part in parts]
    stacked = parts[0].new_empty(sum(lengths), *parts[0].shape[1:], dtype=torch.bfloat16)
    for place, part in zip(stacked.split(lengths), parts, strict=True):
        place.copy_(part)
    return stacked


def columns(products: Sequence[torch.Tensor], widths: Sequence[Sequence[int]]) -> Projected:
    """Return queries, keys and values as columns of one or two matrices."""
    return Projected(
        *(part for product, each in zip(products, widths, strict=True) for part in product.split(each, dim=1))
    )
