"""Pre-softmax projection and label-smoothed cross-entropy (section 5.4), for training on a CPU."""

from typing import Any

import torch

from training.cpu import kernels
from training.cpu.kernels import ROWS


MAX_LOGITS = 2**24  # computed at a time: 32 MB


class SmoothedCrossEntropy(torch.autograd.Function):
    """What `LinearSmoothedCrossEntropy` of `training.objective.loss` is; see there for the formulas."""

    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        rounded: torch.Tensor,
        weight: torch.Tensor,
        labels: torch.Tensor,
        label_smoothing: float,
        frozen_row: int | None,
        rdrop_alpha: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sums of the smoothed and of the plain cross-entropy over (passes, N, D) states.

        The states come in float32 and `rounded`; the gradient of the latter goes to the former. `labels` (N,) are -100
        where there is no target; row `frozen_row` of the (V, D) `weight` gets no gradient. With R-Drop there are two
        passes instead of one, and `rdrop_alpha` times their divergence is added to the smoothed sum.
        """
        passes, count, width = rounded.shape
        eps_i = label_smoothing / (len(weight) - 1)
        nll_weight = 1 - label_smoothing - eps_i
        projection = weight.to(rounded.dtype)
        projection_sum = projection.sum(0, dtype=torch.float32)
        logsumexps, target_logits = sums = torch.empty(2, passes, count, dtype=torch.float32)
        divergence = torch.zeros((), dtype=torch.float32)
        d_rounded, d_weight = torch.empty_like(rounded), None
        for rows in parts(count, max(1, MAX_LOGITS // (passes * len(weight)) // ROWS) * ROWS):
            part = rounded[:, rows].reshape(-1, width)
            d_logits, found = part @ projection.T, torch.empty(2, passes, len(labels[rows]))
            if rdrop_alpha is None:
                kernels.softmax_minus_target_(d_logits, labels[rows], nll_weight, *found)
            else:
                apart = kernels.softmaxes_minus_target_(d_logits, labels[rows], nll_weight, *found, rdrop_alpha)
                divergence += rdrop_alpha * apart.sum()
            sums[:, :, rows] = found
            d_rounded[:, rows] = (d_logits @ projection).view(passes, -1, width)
            d_part = d_logits.T @ part
            d_weight = d_part if d_weight is None else d_part.float().add_(d_weight)
        has_target = (labels != -100).float()
        d_states = (d_rounded - eps_i * projection_sum).mul_(has_target[:, None])
        # The constant part of q is the same in each row of d_weight: `backward`, which reads all of it to scale it,
        # subtracts that part on the way.
        ctx.save_for_backward(d_states, d_weight, eps_i * (has_target @ rounded.float()).sum(0))
        ctx.frozen_row = frozen_row
        nll_loss = (logsumexps - target_logits).sum()
        smooth_loss = len(weight) * logsumexps.sum() - ((rounded.float() @ projection_sum) @ has_target).sum()
        ctx.mark_non_differentiable(nll_loss)
        return nll_weight * nll_loss + eps_i * smooth_loss + divergence, nll_loss

    @staticmethod
    def backward(ctx: Any, d_loss: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Scale the gradients that `forward` computed."""
        d_states, d_weight, from_each_row = ctx.saved_tensors
        d_weight = (d_weight - from_each_row).mul_(d_loss)
        if ctx.frozen_row is not None:
            d_weight[ctx.frozen_row] = 0
        return d_states * d_loss, None, d_weight, None, None, None, None


def parts(count: int, size: int) -> list[slice]:
    """Cut `count` rows into parts of at most `size`."""
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
