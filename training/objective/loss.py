"""Label-smoothed cross-entropy (section 5.4) as sums, so that whoever adds them up decides what to divide by.

Evaluation has logits and uses `label_smoothed_sums`. Training wraps the model in a `LabelSmoothedObjective`, which
never holds the logits of all positions: for 25,000 tokens and 37,000 types they are 3.7 GB in float32.
"""

from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel


# Positions whose logits exist at a time. On a processor 384 x 8,000 of them stay in its cache; a GPU needs more rows
# to be busy. Measured: 128 and 800 rows are slower on 2 cores.
CHUNK_ON_CPU, CHUNK_ON_GPU = 384, 2048


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


class LabelSmoothedObjective(nn.Module):
    """The model and its training loss in one module, so that data-parallel wrappers hold both.

    Parameters
    ----------
    model : PreTrainedModel
        Kept as `model`. Its `lm_head.weight` is read in `forward` only, where FSDP has gathered it.
    label_smoothing : float
        eps in [0, 1): 0.1 in the paper.

    Notes
    -----
    `torch.compile` of the objective compiles encoder and decoder as one graph and the loss's element-wise part as
    another; the loop over chunks between them stays Python's, so that their number recompiles nothing.
    """

    def __init__(self, model: PreTrainedModel, label_smoothing: float):
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> LossSums:
        """Return the sums over the real tokens of (B, T) `labels`; with none, zeros that still have gradients."""
        hidden_states = self.model.model(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=self.model.prepare_decoder_input_ids_from_labels(labels),
            use_cache=False,
        ).last_hidden_state
        return fused_label_smoothed_sums(
            hidden_states,
            self.model.lm_head.weight,
            labels,
            self.label_smoothing,
            # The row of <pad> is the zero vector that the decoder starts from, and stays it.
            frozen_row=self.model.config.pad_token_id,
            compiled=torch.compiler.is_compiling(),
        )


@torch.compiler.disable
def fused_label_smoothed_sums(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    label_smoothing: float,
    chunk: int | None = None,
    frozen_row: int | None = None,
    compiled: bool = False,
) -> LossSums:
    """Project and return what `label_smoothed_sums` returns, holding the logits of `chunk` positions at a time.

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

    Notes
    -----
    Matrix products are in autocast's type, where it is on, and what lies between them in float32 or wider.
    """
    device = hidden_states.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_states.dtype
    chunk = chunk or (CHUNK_ON_CPU if device == "cpu" else CHUNK_ON_GPU)
    hidden_states, labels = hidden_states.reshape(-1, hidden_states.shape[-1]), labels.reshape(-1)
    with_gradient = torch.is_grad_enabled() and (hidden_states.requires_grad or weight.requires_grad)
    settings = Settings(label_smoothing, dtype, chunk, frozen_row, with_gradient, compiled)
    with torch.autocast(device, enabled=False):  # the types are chosen here, not by it
        loss, nll = LinearSmoothedCrossEntropy.apply(hidden_states, weight, labels, settings)
    return LossSums(loss, nll, (labels != -100).sum())


class Settings(NamedTuple):
    """What `LinearSmoothedCrossEntropy` has to know beside its tensors."""

    label_smoothing: float
    dtype: torch.dtype
    chunk: int
    frozen_row: int | None
    with_gradient: bool
    compiled: bool


class LinearSmoothedCrossEntropy(torch.autograd.Function):
    """Pre-softmax projection and smoothed cross-entropy, with the gradients computed as the loss is, chunk by chunk.

    Notes
    -----
    The gradient by a position's logits is p - q: its softmax less its wanted distribution. q is eps / (V - 1)
    everywhere, but for the target, so that part of q goes through the products as sums over types and positions, in
    float32. What is left is small only where p is, and the 3e-8 that float16 may lose of it are, over 37,000 types,
    0.1% of the mass: the gradient needs no scale here, and takes the `GradScaler`'s in `backward`.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_states: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, settings: Settings
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sums of the smoothed and of the plain cross-entropy over (N, D) states."""
        other = settings.label_smoothing / (len(weight) - 1)
        confidence = 1 - settings.label_smoothing - other
        wide = torch.promote_types(settings.dtype, torch.float32)
        softmax = compiled_softmax_and_normalizer if settings.compiled else softmax_and_normalizer

        # A position without target has a zero state: so it adds nothing to the weight's gradient.
        none = labels == -100
        labels = labels.masked_fill(none, 0)
        states = hidden_states.masked_fill(none[:, None], 0).to(settings.dtype)
        matrix = weight.to(settings.dtype)
        over_types = matrix.sum(0, dtype=wide)  # (D,)
        normalizers, targets = states.new_empty((2, len(states)), dtype=wide)
        d_states = torch.empty_like(states, dtype=wide)
        d_weight = torch.zeros_like(weight, dtype=wide)
        for start in range(0, len(states), settings.chunk):
            rows = slice(start, start + settings.chunk)
            scores = states[rows] @ matrix.T  # (chunk, V)
            targets[rows] = scores.gather(1, labels[rows, None])[:, 0]
            d_scores, normalizers[rows] = softmax(scores)
            if settings.with_gradient:
                d_target = (targets[rows] - normalizers[rows]).exp() - confidence
                d_scores.scatter_(1, labels[rows, None], d_target[:, None].to(d_scores.dtype))
                d_states[rows] = d_scores @ matrix
                d_weight += d_scores.T @ states[rows]
        if settings.with_gradient:
            d_states = (d_states - other * over_types).masked_fill(none[:, None], 0)
            d_weight -= other * states.sum(0, dtype=wide)
            if settings.frozen_row is not None:
                d_weight[settings.frozen_row] = 0
            ctx.save_for_backward(d_states, d_weight)
            ctx.dtypes = hidden_states.dtype, weight.dtype

        nll = (normalizers - targets).masked_fill(none, 0).sum()
        over_all_types = (len(weight) * normalizers - states.to(wide) @ over_types).masked_fill(none, 0).sum()
        ctx.mark_non_differentiable(nll)
        return confidence * nll + other * over_all_types, nll

    @staticmethod
    def backward(ctx: Any, d_loss: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Scale what `forward` computed."""
        gradients = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        return *((gradient * d_loss).to(dtype) for gradient, dtype in gradients), None, None


def softmax_and_normalizer(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (N, V) probabilities in the scores' type, and in float32 or wider the (N,) log of what they are over."""
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    probabilities = wide.softmax(-1)
    # The highest probability is at least 1 / V: its logarithm is exact, as that of another may not be.
    return probabilities.to(scores.dtype), wide.amax(-1) - probabilities.amax(-1).log()


compiled_softmax_and_normalizer = torch.compile(softmax_and_normalizer)
