"""Facts of the machine: its hardware, the versions of what is installed, the commit of this code."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from training.settings import ROOT
from vaswani.errors import UserError
from vaswani.workers import usable_cores


PACKAGES = ("vaswani", "torch", "transformers", "tokenizers", "datasets", "accelerate", "sacrebleu", "sacremoses")


def installed_version(package: str) -> str:
    """Return the version of a package, or "not installed": one on the import path need not be."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def describe_commit() -> str:
    """Return the commit of this code; nothing where there is no git, or the code is in no repository."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def describe_hardware(device: torch.device) -> str:
    """Name the CPU or GPU that does the work, such as "AMD EPYC, 2 cores" or "NVIDIA H200"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    names = [platform.processor() or platform.machine()]
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")] or names
    cores = usable_cores()
    return f"{names[0]}, {cores} {'core' if cores == 1 else 'cores'}"


def check_device(device: str) -> None:
    """Refuse a GPU that is not there."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device='cuda' needs a GPU, and torch finds none: leave it out")
