"""Weights and Adam's moments as whole tensors by name, even where FSDP shards them over processes."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast, broadcast_object_list
from safetensors import safe_open
from torch.distributed.tensor import DTensor, distribute_tensor

from training.checkpoints.files import OPTIMIZER, WEIGHTS


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole tensor; all processes must ask together, since a shard of FSDP is gathered."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def optimizer_tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return Adam's moments and step counts, named ``<key>.<weight>``; nothing before the first update."""
    return {
        f"{key}.{name}": value
        for name, weight in model.named_parameters()
        for key, value in optimizer.state.get(weight, {}).items()
    }


@torch.no_grad()
def load_tensors(
    folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, accelerator: Accelerator
) -> None:
    """Load weights and Adam's state from a checkpoint; only the main process reads it."""
    with ExitStack() as stack:
        files: list[Any] = [None, None]
        keys: list[Any] = [None]
        if accelerator.is_main_process:
            files = [stack.enter_context(safe_open(folder / name, framework="pt")) for name in (WEIGHTS, OPTIMIZER)]
            names = files[1].keys()
            keys = [sorted({name.partition(".")[0] for name in names})]
        [keys] = broadcast_object_list(keys)
        for name, weight in model.named_parameters():
            weight.copy_(_spread(files[0], name, weight.shape, weight, accelerator))
            for key in keys if weight.requires_grad else ():
                shape = torch.Size() if key == "step" else weight.shape
                optimizer.state[weight][key] = _spread(files[1], f"{key}.{name}", shape, weight, accelerator)


def _spread(file: Any, name: str, shape: torch.Size, weight: torch.Tensor, accelerator: Accelerator) -> torch.Tensor:
    """Read a tensor in the main process and send it to all, to each only its shard of a sharded weight."""
    value = torch.empty(shape) if file is None else file.get_tensor(name)
    value = value.to(accelerator.device)
    if isinstance(weight, DTensor) and shape == weight.shape:
        return distribute_tensor(value, weight.device_mesh, weight.placements)
    return broadcast(value)
