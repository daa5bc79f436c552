"""R-Drop (Liang et al. 2021, arXiv 2106.14448): how far apart two predictions of the same are, with other dropout."""

from collections.abc import Sequence

import torch


def symmetric_divergence(
    logits: Sequence[torch.Tensor], probabilities: Sequence[torch.Tensor], logsumexps: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the sum over positions of (KL(P || Q) + KL(Q || P)) / 2, Eq. 2 of R-Drop, with its gradients.

    Parameters
    ----------
    logits, probabilities : two Tensors of shape (N, V)
        Of P and of Q.
    logsumexps : two Tensors of shape (N,)
        Of the logits, in float32 or wider.

    Returns
    -------
    divergence : Tensor of shape ()
    gradients : list of two Tensors of shape (N, V)
        With respect to the logits of P and of Q, in the type of the probabilities.

    Notes
    -----
    With r = ln P - ln Q the divergence is the sum of (P - Q) r / 2, and its gradient by the logits of P is
    (P (r - KL(P || Q)) + P - Q) / 2.
    """
    dtype = logsumexps[0].dtype
    p, q = (part.to(dtype) for part in probabilities)
    ratio = logits[0].to(dtype) - logits[1].to(dtype) - (logsumexps[0] - logsumexps[1])[:, None]
    difference = p - q
    gradients = []
    for part, sign in ((p, 1.0), (q, -1.0)):
        weighted = part * ratio
        mean = weighted.sum(-1, keepdim=True)  # KL of this one from the other, times the sign
        gradients.append(((weighted - part * mean + difference) * (sign / 2)).to(probabilities[0].dtype))
    return (difference * ratio).sum() / 2, gradients
