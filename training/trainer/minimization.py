"""What a run minimizes, in the form that is fastest on its device, and the optimizer that does it."""

import os
from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import nn
from transformers import PreTrainedModel

from training.cpu.model import why_not as why_no_kernels
from training.objective.loss import LabelSmoothedObjective
from training.settings import OptimizationSettings, RunSettings, TrainingSettings


DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def freeze_what_learns_nothing(model: PreTrainedModel) -> None:
    """Keep the biases of W^K as they begin, at zero unless imported, and a shared embedding that nothing shares.

    A key bias shifts all scores of a query equally, so the softmax cancels it. Its gradient is rounding noise, which
    Adam would turn into full-size random steps. Where the embeddings are untied, nothing is computed with the shared
    one, and several processes would wait for its gradient.
    """
    for name, weight in model.named_parameters():
        is_unused = name.endswith("shared.weight") and not model.config.tie_word_embeddings
        if is_unused or name.endswith("k_proj.bias"):
            weight.requires_grad_(False)


def choose_packing(
    model: PreTrainedModel, accelerator: Accelerator, optimization: OptimizationSettings, say: Callable[[str], object]
) -> bool:
    """Tell whether sentences stand one after another, as they can on a GPU, and say so, or why not."""
    if accelerator.device.type != "cuda":
        return False
    if optimization.rdrop_alpha is not None:
        reason = "R-Drop wants each batch twice"
    elif accelerator.distributed_type == DistributedType.FSDP:
        reason = "FSDP wants whole layers"
    else:
        from training.gpu.objective import why_not as why_padded

        reason = why_padded(model, accelerator.device, DTYPES.get(accelerator.mixed_precision, torch.float32))
    said = "stand one after another, without padding" if reason is None else f"are padded: {reason}"
    say(f"Sentences {said}")
    return reason is None


def make_objective(
    model: PreTrainedModel,
    accelerator: Accelerator,
    settings: TrainingSettings,
    is_packed: bool,
    say: Callable[[str], object],
) -> nn.Module:
    """Put a model and its training loss together, for sentences one after another or for padded ones."""
    # "During training, we employed label smoothing of value eps_ls = 0.1" (section 5.4).
    label_smoothing, compiled = settings.optimization.label_smoothing, settings.run.torch_compile
    if is_packed:
        from training.gpu.objective import PackedObjective
        from training.gpu.recorded import RecordedObjective

        if compiled:
            say("torch_compile=True: nothing is compiled, since kernels compute what lies between the products")
        packed = PackedObjective(model, label_smoothing)
        is_recorded = accelerator.device.type == "cuda" and accelerator.scaler is None
        return RecordedObjective(packed, say) if is_recorded else packed
    kernels_dtype = choose_kernels(model, accelerator, settings.run, say)
    objective = LabelSmoothedObjective(model, label_smoothing, settings.optimization.rdrop_alpha, kernels_dtype)
    if compiled:
        objective.compile(dynamic=True)  # the model within stays as it is for evaluation
    return objective


def choose_kernels(
    model: PreTrainedModel, accelerator: Accelerator, run: RunSettings, say: Callable[[str], object]
) -> torch.dtype | None:
    """Return the type of the products, if `training.cpu` computes what lies between them; say so, or why not.

    It also limits what oneDNN keeps.
    """
    if accelerator.device.type != "cpu":
        return None
    dtype = DTYPES.get(accelerator.mixed_precision, torch.float32)
    if run.torch_compile:
        reason = "torch_compile is true"
    elif accelerator.distributed_type == DistributedType.FSDP:
        reason = "they do not go together with FSDP"
    else:
        reason = why_no_kernels(model, dtype)
    said = "kernels in C, attention included" if reason is None else f"PyTorch, not kernels in C: {reason}"
    say(f"Between the matrix products: {said}")
    # oneDNN keeps the code that it makes for each shape of a matrix product. Batches have thousands of shapes, few
    # of which return soon: its usual 1,024 take 0.6 GB and save no time. The kernels leave some 500 shapes.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64" if reason else "512")
    return dtype if reason is None else None


def make_optimizer(objective: nn.Module, optimization: OptimizationSettings) -> torch.optim.Adam:
    """Return the optimizer of all weights of an objective."""
    # "We used the Adam optimizer with beta_1 = 0.9, beta_2 = 0.98 and epsilon = 10^-9" (section 5.3).
    return torch.optim.Adam(
        decayed_apart(objective, optimization.weight_decay),
        betas=(optimization.adam_beta1, optimization.adam_beta2),
        eps=optimization.adam_epsilon,
        decoupled_weight_decay=True,
        fused=True,
    )


def decayed_apart(module: nn.Module, weight_decay: float | None) -> list[dict[str, Any]]:
    """Return the groups of weights of the optimizer: with decay, matrices apart from biases and gains."""
    weights = list(module.parameters())
    if weight_decay is None:
        return [{"params": weights}]
    return [
        {"params": [weight for weight in weights if weight.dim() > 1], "weight_decay": weight_decay},
        {"params": [weight for weight in weights if weight.dim() < 2]},
    ]
