"""Label-smoothed cross-entropy (section 5.4) as sums, so that whoever adds them up decides what to divide by."""

from typing import NamedTuple

import torch


class LossSums(NamedTuple):
    """Sums over the real target tokens of a batch."""

    loss: torch.Tensor
    nll: torch.Tensor
    tokens: torch.Tensor


def label_smoothed_sums(logits: torch.Tensor, labels: torch.Tensor, label_smoothing: float) -> LossSums:
    """Cross-entropy against 1 - eps on the target and eps / (V - 1) on every other type.

    Parameters
    ----------
    logits : Tensor of shape (..., V)
        Before the softmax; computed on in float32 whatever their type.
    labels : Tensor of shape (...)
        Target ids, -100 where there is no target.
    label_smoothing : float
        eps in [0, 1): 0.1 in the paper.

    Returns
    -------
    LossSums
        `loss`, the smoothed cross-entropy that training minimizes; `nll`, the plain one, without gradient; and
        `tokens`, the number of targets: scalars.

    Notes
    -----
    The original code, too, spreads eps over the V - 1 other types; PyTorch's own smoothing spreads it over all V.
    """
    vocab_size = logits.shape[-1]
    log_probabilities = torch.log_softmax(logits.reshape(-1, vocab_size).float(), dim=-1)  # (N, V)
    labels = labels.reshape(-1)
    real = labels != -100
    nll = torch.nn.functional.nll_loss(log_probabilities, labels, reduction="sum")
    over_all_types = -(log_probabilities.sum(-1) * real).sum()
    other = label_smoothing / (vocab_size - 1)
    loss = (1 - label_smoothing - other) * nll + other * over_all_types
    return LossSums(loss, nll.detach(), real.sum())
