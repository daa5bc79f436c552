"""Label-smoothed cross-entropy (section 5.4) as sums, so that the caller decides what to divide by.

Evaluation has logits and uses `label_smoothed_sums`. Training wraps the model in a `LabelSmoothedObjective`, which
never holds the logits of all positions: for 25,000 tokens and 37,000 types they are 3.7 GB in float32.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from training.cpu.cross_entropy import SmoothedCrossEntropy
from training.cpu.kernels import padded
from training.cpu.model import check_ids, decoder_states
from training.objective.divergence import symmetric_divergence


# Positions whose logits exist at a time. On a CPU, 384 x 8,000 logits stay in its cache (128 and 800 positions were
# slower on 2 cores); a GPU needs more to be busy, and more fit where one pass makes no copies in float32. On an
# H200, the compiled loss of 23,552 positions and 37,000 types takes 8.2 ms by 2,048, 7.0 by 8,192 and 6.8 at once.
CHUNK_ON_CPU, CHUNK_ON_GPU, CHUNK_FUSED_ON_GPU = 384, 2048, 8192

# From logits (N, V) to probabilities and (N,) logsumexps.
Normalization = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


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
        Scores before the softmax, of any type; the sums are computed in float32.
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
    has_target = labels != -100
    nll_loss = torch.nn.functional.nll_loss(log_probabilities, labels, reduction="sum")
    smooth_loss = -(log_probabilities.sum(-1) * has_target).sum()
    eps_i = label_smoothing / (vocab_size - 1)
    loss = (1 - label_smoothing - eps_i) * nll_loss + eps_i * smooth_loss
    return LossSums(loss, nll_loss.detach(), has_target.sum())


class LabelSmoothedObjective(nn.Module):
    """The model and its training loss in one module, so that data-parallel wrappers hold both.

    Parameters
    ----------
    model : PreTrainedModel
        Kept as `model`. Its `lm_head` is read in `forward` only, where FSDP has gathered it.
    label_smoothing : float
        eps in [0, 1): 0.1 in the paper.
    rdrop_alpha : float, default=None
        Weight of R-Drop's divergence (`divergence.symmetric_divergence`). Each batch is then computed twice, and the
        losses are the means of both.
    kernels_dtype : torch.dtype, default=None
        If given, `training.cpu` computes what lies between the products, and these are in this type, bfloat16 or
        float32. `training.cpu.model.why_not` may forbid it.

    Notes
    -----
    `torch.compile` of the objective compiles encoder and decoder as one graph and the element-wise part of the loss as
    another. The loop over chunks stays in Python, so that another number of chunks recompiles nothing.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        label_smoothing: float,
        rdrop_alpha: float | None = None,
        kernels_dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.rdrop_alpha = rdrop_alpha
        self.kernels_dtype = kernels_dtype

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> LossSums:
        """Return the sums over the real tokens of (B, T) `labels`; without any, zeros that still have gradients."""
        if self.rdrop_alpha is not None:
            input_ids, attention_mask, labels = (
                torch.cat([side, side]) for side in (input_ids, attention_mask, labels)
            )
        projection = self.model.lm_head
        # The row of <pad> is the zero vector that the decoder starts from, and must stay zero.
        frozen_row = self.model.config.pad_token_id
        if self.kernels_dtype is not None:
            with torch.autocast("cpu", enabled=False):  # the types are chosen here, not by it
                states, labels = decoder_states(self.model, input_ids, attention_mask, labels, self.kernels_dtype)
                sums = label_smoothed_sums_by_kernels(
                    states, projection, labels, self.label_smoothing, frozen_row, self.rdrop_alpha
                )
        else:
            decoder_input_ids = self.model.prepare_decoder_input_ids_from_labels(labels)
            hidden_states = self.model.model(
                input_ids, attention_mask=attention_mask, decoder_input_ids=decoder_input_ids, use_cache=False
            ).last_hidden_state
            weight, hidden_states = as_one_product(projection, hidden_states)
            sums = fused_label_smoothed_sums(
                hidden_states,
                weight,
                labels,
                self.label_smoothing,
                frozen_row=frozen_row,
                compiled=torch.compiler.is_compiling(),
                rdrop_alpha=self.rdrop_alpha,
            )
        return sums if self.rdrop_alpha is None else LossSums(sums.loss / 2, sums.nll / 2, sums.tokens // 2)


def as_one_product(projection: nn.Linear, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return a matrix (V, D) and the (..., D) states that it projects; W x + b is [W, b] [x, 1]."""
    if projection.bias is None:
        return projection.weight, *states
    weight = torch.cat([projection.weight, projection.bias[:, None]], dim=1)
    return weight, *(nn.functional.pad(each, (0, 1), value=1.0) for each in states)


def label_smoothed_sums_by_kernels(
    states: tuple[torch.Tensor, torch.Tensor],
    projection: nn.Linear,
    labels: torch.Tensor,
    label_smoothing: float,
    frozen_row: int | None,
    rdrop_alpha: float | None,
) -> LossSums:
    """Return the sums for (N, D) `states` and (rows,) `labels` of `decoder_states`, as `fused_label_smoothed_sums`."""
    weight, *states = as_one_product(projection, *states)
    check_ids(labels.clamp(min=0), len(weight))
    tokens = (labels != -100).sum()
    if rdrop_alpha is None:
        states = [each[None] for each in states]
    else:
        count = len(labels) // 2
        labels, behind = labels[:count], (0, 0, 0, padded(count) - count)  # the other half of the labels are the same
        states = [nn.functional.pad(each[: 2 * count].unflatten(0, (2, count)), behind) for each in states]
    labels = nn.functional.pad(labels, (0, states[0].shape[1] - len(labels)), value=-100)
    sums = SmoothedCrossEntropy.apply(*states, weight, labels, label_smoothing, frozen_row, rdrop_alpha)
    return LossSums(*sums, tokens)


@torch.compiler.disable
def fused_label_smoothed_sums(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    label_smoothing: float,
    chunk: int | None = None,
    frozen_row: int | None = None,
    compiled: bool = False,
    rdrop_alpha: float | None = None,
    normalize: Normalization | None = None,
) -> LossSums:
    """Project, and return the sums of `label_smoothed_sums`, holding the logits of `chunk` positions at a time.

    Parameters
    ----------
    hidden_states : Tensor of shape (..., D)
        The decoder's output.
    weight : Tensor of shape (V, D)
        The pre-softmax projection.
    labels : Tensor of shape (...)
        Target ids, -100 where there is no target.
    label_smoothing : float
        eps in [0, 1).
    chunk : int, default=None
        Positions at a time; None chooses by device.
    frozen_row : int, default=None
        Row of `weight` that gets no gradient.
    compiled : bool, default=False
        Whether to compile the element-wise part.
    rdrop_alpha : float, default=None
        If given, the second half of states and labels are the first half's again, with other dropout, and the loss has
        this times their divergence too.
    normalize : callable, default=None
        What to compute softmax and logsumexp with, instead of PyTorch; it may write over the logits.

    Notes
    -----
    Matrix products are in autocast's type, where it is on; everything between them is in float32 or wider.
    """
    device = hidden_states.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_states.dtype
    chunk = chunk or positions_at_a_time(device, compiled or normalize is not None)
    if normalize is None:
        normalize = compiled_softmax_and_logsumexp() if compiled else softmax_and_logsumexp
    hidden_states, labels = hidden_states.reshape(-1, hidden_states.shape[-1]), labels.reshape(-1)
    with_gradient = torch.is_grad_enabled() and (hidden_states.requires_grad or weight.requires_grad)
    options = FusedLossOptions(label_smoothing, dtype, chunk, frozen_row, with_gradient, normalize, rdrop_alpha)
    with torch.autocast(device, enabled=False):  # the types are chosen here, not by it
        loss, nll_loss = LinearSmoothedCrossEntropy.apply(hidden_states, weight, labels, options)
    return LossSums(loss, nll_loss, (labels != -100).sum())


def positions_at_a_time(device: str, is_fused: bool) -> int:
    """Return how many positions' logits exist at a time where nobody asks for another number."""
    if device == "cpu":
        return CHUNK_ON_CPU
    return CHUNK_FUSED_ON_GPU if is_fused else CHUNK_ON_GPU


class FusedLossOptions(NamedTuple):
    """The arguments of `LinearSmoothedCrossEntropy` that are not tensors."""

    label_smoothing: float
    dtype: torch.dtype
    chunk: int
    frozen_row: int | None
    with_gradient: bool
    normalize: Normalization
    rdrop_alpha: float | None


class LinearSmoothedCrossEntropy(torch.autograd.Function):
    """Pre-softmax projection and smoothed cross-entropy, with the gradients computed as the loss is, chunk by chunk.

    Notes
    -----
    The gradient with respect to a position's logits is p - q, the softmax minus the smoothed target distribution. q is
    eps_i = eps / (V - 1) everywhere except at the target. This constant part goes through the matrix products as sums
    over types and over positions, in float32. The rest is small only where p is small: the 3e-8 that float16 may lose
    of each value are 0.1% of the probability over 37,000 types. So the gradient needs no scale here; `backward` gets
    the `GradScaler`'s.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_states: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, options: FusedLossOptions
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sums of the smoothed and of the plain cross-entropy over (N, D) states."""
        eps_i = options.label_smoothing / (len(weight) - 1)
        nll_weight = 1 - options.label_smoothing - eps_i
        wide_dtype = torch.promote_types(options.dtype, torch.float32)

        # The state of a position without target is set to zero, so that it adds nothing to the weight's gradient.
        is_ignored = labels == -100
        labels = labels.masked_fill(is_ignored, 0)
        states = hidden_states.masked_fill(is_ignored[:, None], 0).to(options.dtype)
        projection = weight.to(options.dtype)
        projection_sum = projection.sum(0, dtype=wide_dtype)  # (D,)
        logsumexps, target_logits = states.new_empty((2, len(states)), dtype=wide_dtype)
        d_states = torch.empty_like(states, dtype=wide_dtype)
        d_weight = torch.zeros_like(weight, dtype=wide_dtype)
        divergence = target_logits.new_zeros(())
        for passes in chunks(len(states), options.chunk, 1 if options.rdrop_alpha is None else 2):
            logits = [states[rows] @ projection.T for rows in passes]  # (chunk, V) each
            probabilities = []
            for rows, scores in zip(passes, logits, strict=True):
                target_logits[rows] = scores.gather(1, labels[rows, None])[:, 0]
                found, logsumexps[rows] = options.normalize(scores)
                probabilities.append(found)
            if options.rdrop_alpha is not None:
                apart, d_apart = symmetric_divergence(logits, probabilities, [logsumexps[rows] for rows in passes])
                divergence += options.rdrop_alpha * apart
            for number, rows in enumerate(passes if options.with_gradient else ()):
                d_target = (target_logits[rows] - logsumexps[rows]).exp() - nll_weight
                # Overwrites the probabilities, which are not needed again; -eps_i for every type is added below.
                # `scatter_` would copy all of them twice on a CPU.
                d_logits = probabilities[number]
                places = torch.arange(len(d_logits), device=d_logits.device)
                d_logits[places, labels[rows]] = d_target.to(d_logits.dtype)
                if options.rdrop_alpha is not None:
                    d_logits.add_(d_apart[number], alpha=options.rdrop_alpha)
                d_states[rows] = d_logits @ projection
                d_weight += d_logits.T @ states[rows]
        if options.with_gradient:
            d_states = (d_states - eps_i * projection_sum).masked_fill(is_ignored[:, None], 0)
            d_weight -= eps_i * states.sum(0, dtype=wide_dtype)
            if options.frozen_row is not None:
                d_weight[options.frozen_row] = 0
            ctx.save_for_backward(d_states, d_weight)
            ctx.dtypes = hidden_states.dtype, weight.dtype

        nll_loss = (logsumexps - target_logits).masked_fill(is_ignored, 0).sum()
        logit_sums = states.to(wide_dtype) @ projection_sum
        smooth_loss = (len(weight) * logsumexps - logit_sums).masked_fill(is_ignored, 0).sum()
        ctx.mark_non_differentiable(nll_loss)
        return nll_weight * nll_loss + eps_i * smooth_loss + divergence, nll_loss

    @staticmethod
    def backward(ctx: Any, d_loss: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Scale the gradients that `forward` computed."""
        gradients = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        return *((gradient * d_loss).to(dtype) for gradient, dtype in gradients), None, None


def chunks(rows: int, size: int, passes: int) -> Iterator[list[slice]]:
    """Yield places of at most `size` rows of the first of equal passes, each with those of the other passes."""
    length = rows // passes
    for start in range(0, length, size):
        yield [slice(start + before, min(start + size, length) + before) for before in range(0, rows, length)]


def softmax_and_logsumexp(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the (N, V) probabilities in the logits' type, and the (N,) logsumexps in float32 or wider."""
    wide_logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    probabilities = wide_logits.softmax(-1)
    # The highest probability is at least 1 / V, so its logarithm is accurate; another might underflow.
    return probabilities.to(logits.dtype), wide_logits.amax(-1) - probabilities.amax(-1).log()


@functools.cache
def compiled_softmax_and_logsumexp() -> Normalization:
    """Return the same compiled; torch's compiler, which takes a second to import, is for those who compile."""
    return torch.compile(softmax_and_logsumexp)
