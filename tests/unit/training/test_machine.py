from importlib.metadata import version

import torch

from training import machine


def test_a_gpu_is_named_as_torch_names_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    assert machine.describe_hardware(torch.device("cuda")) == "NVIDIA H200"


def test_one_core_is_one_core(monkeypatch):
    monkeypatch.setattr(machine, "usable_cores", lambda: 1)
    assert machine.describe_hardware(torch.device("cpu")).endswith(", 1 core")


def test_a_cpu_is_named_with_the_cores_that_may_be_used(monkeypatch):
    monkeypatch.setattr(machine, "usable_cores", lambda: 3)
    described = machine.describe_hardware(torch.device("cpu"))
    assert described.endswith(", 3 cores")
    assert len(described) > len(", 3 cores")


def test_a_package_need_not_be_installed():
    assert machine.installed_version("torch") == version("torch")
    assert machine.installed_version("no-such-package") == "not installed"


def test_a_machine_without_git_names_no_commit(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.describe_commit() == ""
