"""Section 3.2.1: what large d_k does to dot products and to the softmax over them, and what 1/sqrt(d_k) mends.

"We suspect that for large values of d_k, the dot products grow large in magnitude, pushing the softmax function into
regions where it has extremely small gradients." Components of queries and keys are independent, of mean 0 and
variance 1, as in the paper's footnote: their dot product has variance d_k.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn


QUERIES, KEYS = 256, 64


@dataclass(frozen=True)
class Saturation:
    """How flat or peaked a softmax over scores is.

    Parameters
    ----------
    score_variance : float
    softmax_entropy : float
        Of the weights, in nats, on average over queries; log(64) = 4.16 if all keys weigh the same.
    softmax_gradient_mean, softmax_gradient_median : float
        Norm (Frobenius) of the softmax's Jacobian, over queries. It is 0 where one key takes all, and greatest, 0.71,
        where two share: these few keep the mean up when it is long 0 for most.
    """

    score_variance: float
    softmax_entropy: float
    softmax_gradient_mean: float
    softmax_gradient_median: float


def dot_product(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return q . k."""
    return (key @ query[:, :, None]).squeeze(2)


def scaled_dot_product(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return q . k / sqrt(d_k), as in Eq. 1."""
    return dot_product(query, key) * query.shape[1] ** -0.5


def additive(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return v . tanh(W q + U k), with a hidden layer of d_k units and Glorot's uniform initial weights."""
    width = query.shape[1]
    project_query, project_key, score = (nn.Linear(width, units, bias=False) for units in (width, width, 1))
    for layer in (project_query, project_key, score):
        nn.init.xavier_uniform_(layer.weight)
    hidden = torch.tanh(project_query(query)[:, None] + project_key(key))
    return score(hidden).squeeze(2)


SCORES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "dot product": dot_product,
    "scaled dot product": scaled_dot_product,
    "additive": additive,
}


@torch.no_grad()
def measure_saturation(name: str, width: int) -> Saturation:
    """Score 64 random keys for each of 256 random queries of width d_k, and describe the softmax.

    The norm of the Jacobian diag(p) - p p^T is found without building it: its square is the sum of
    (p_i - p_i^2)^2 and, off the diagonal, of (p_i p_j)^2.
    """
    torch.manual_seed(0)
    query, key = torch.randn(QUERIES, width), torch.randn(QUERIES, KEYS, width)
    scores = SCORES[name](query, key).double()
    weights = scores.softmax(dim=-1)
    entropy = torch.special.entr(weights).sum(dim=-1)
    squares = weights**2
    off_diagonal = squares.sum(dim=-1) ** 2 - (squares**2).sum(dim=-1)
    norm = (((weights - squares) ** 2).sum(dim=-1) + off_diagonal).clamp(min=0).sqrt()
    return Saturation(scores.var().item(), entropy.mean().item(), norm.mean().item(), norm.median().item())
