"""What an update gives, and when it is read."""

import math
from typing import NamedTuple

import torch

from training.data.loader import Update


class UpdateResult(NamedTuple):
    """The result of an update, over all processes.

    Attributes
    ----------
    loss, nll : float
        Sums over target tokens of the smoothed and of the plain negative log-likelihood.
    gradient_norm : float
    stop_votes, save_votes : float
        How many processes want the run to end, or a checkpoint to be saved.
    """

    loss: float
    nll: float
    stop_votes: float
    save_votes: float
    gradient_norm: float

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradient are numbers, so that the weights may be changed by them."""
        return math.isfinite(self.loss + self.gradient_norm)


class PendingResult:
    """The result of an update that a device may still be computing.

    Parameters
    ----------
    totals : Tensor of shape (5,)
        The fields of `UpdateResult`.
    """

    def __init__(self, totals: torch.Tensor):
        self.is_here = None
        self.totals = totals.to("cpu", non_blocking=True)
        if totals.device.type == "cuda":
            self.is_here = torch.cuda.Event()
            self.is_here.record()

    def read(self) -> UpdateResult:
        """Wait for the device until it has computed this, though not for what it was given after it."""
        if self.is_here is not None:
            self.is_here.synchronize()
        return UpdateResult(*self.totals.tolist())


class Unread(NamedTuple):
    """An update that was done, or given to a device to do, and whose result nobody has read."""

    step: int
    update: Update
    result: PendingResult
