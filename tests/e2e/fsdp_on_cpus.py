"""Runs a script with FSDP over CPU processes, which accelerate itself does over GPUs only."""

import runpy
import sys

import torch
from accelerate.state import DistributedType, PartialState


def backend_of_gpus(self, *args, **kwargs):
    return "gloo", DistributedType.MULTI_GPU


def use_cpu(self):
    self.device = torch.device("cpu")


# What run.py and accelerate ask before they spread a model.
torch.accelerator.is_available = lambda: True
PartialState._prepare_backend = backend_of_gpus
PartialState.set_device = use_cpu
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
