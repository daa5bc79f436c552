"""A model's loss and gradients as one function, so that a GPU can replay both as one graph."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from training.data.packing import PackedBatch
from training.gpu.graphs import Recorder, Tensors
from training.gpu.objective import PackedObjective
from training.objective.loss import LossSums


class RecordedObjective(nn.Module):
    """A `PackedObjective` on a GPU that gives the same sums, and computes their gradients with them.

    Parameters
    ----------
    objective : PackedObjective
        Not for float16, whose gradients must be those of a loss that is scaled.
    say : callable
        Is given a sentence if nothing can be recorded.
    """

    def __init__(self, objective: PackedObjective, say: Callable[[str], object]):
        super().__init__()
        self.objective = objective
        self.trained = {name: weight for name, weight in objective.named_parameters() if weight.requires_grad}
        self.recorder, self.recorded_for = Recorder(self.sums_and_gradients, say), ()

    def forward(self, *batch: torch.Tensor) -> LossSums:
        """Return the sums over the real tokens of the labels; the arguments are those of a `PackedBatch`.

        A backward pass of it must come before the next batch, which has its gradients in the same place.
        """
        weights = self.trained.values()
        now = self.training, *(weight.data_ptr() for weight in weights)
        if now != self.recorded_for:  # a graph goes on reading where the weights were
            self.recorder.forget()
            self.recorded_for = now
        loss, nll = WithGradients.apply(self.recorder, batch, *weights)
        return LossSums(loss, nll, (PackedBatch(*batch).labels != -100).sum())

    def sums_and_gradients(self, *batch: torch.Tensor) -> Tensors:
        """Compute the sums, loss and nll, and the gradients of the loss.

        With respect to aliases of the weights, of which autograd knows nothing but what is recorded here.
        """
        aliases = {name: weight.detach().requires_grad_() for name, weight in self.trained.items()}
        with torch.enable_grad():
            sums = functional_call(self.objective, aliases, batch)
            gradients = torch.autograd.grad(sums.loss, list(aliases.values()), materialize_grads=True)
        return sums.loss.detach(), sums.nll, *gradients


class WithGradients(torch.autograd.Function):
    """The sums of a batch, whose gradients are computed with them."""

    @staticmethod
    def forward(
        ctx: Any, compute: Callable[..., Tensors], batch: Tensors, *weights: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return loss and nll."""
        loss, nll, *ctx.gradients = compute(*batch)
        loss, nll = loss.clone(), nll.clone()
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, d_loss: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Scale the gradients."""
        return None, None, *torch._foreach_mul(ctx.gradients, d_loss)
