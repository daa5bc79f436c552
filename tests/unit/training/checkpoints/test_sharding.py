"""Weights and moments by name, to a checkpoint and back; whole tensors from shards in a group of one process."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from torch import distributed
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from training.checkpoints import sharding
from training.checkpoints.files import save_checkpoint
from training.checkpoints.sharding import full_tensor, load_tensors, optimizer_tensors


@pytest.fixture
def trained(random_model, batch):
    """Return a factory of models with a frozen weight, and their optimizers after some steps of training."""

    def make(steps: int):
        model = random_model()
        model.model.encoder.layers[0].self_attn.k_proj.bias.requires_grad_(False)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(steps):
            model(**batch(model.config)).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return model, optimizer

    return make


FROZEN = "model.encoder.layers.0.self_attn.k_proj.bias"


def test_moments_are_named_by_key_and_weight(trained):
    assert optimizer_tensors(*trained(0)) == {}
    model, optimizer = trained(2)
    tensors = optimizer_tensors(model, optimizer)
    names = {name for name, _ in model.named_parameters()} - {FROZEN}
    assert set(tensors) == {f"{key}.{name}" for key in ("step", "exp_avg", "exp_avg_sq") for name in names}
    weight = model.model.decoder.layers[1].fc1.weight
    assert tensors["exp_avg_sq.model.decoder.layers.1.fc1.weight"] is optimizer.state[weight]["exp_avg_sq"]
    assert tensors["step.model.decoder.layers.1.fc1.weight"] == 2


def test_a_checkpoint_brings_back_every_weight_and_moment_and_the_next_update(trained, batch, tmp_path):
    model, optimizer = trained(3)
    folder = save_checkpoint(tmp_path, 3, model, optimizer_tensors(model, optimizer), {})
    other, its_optimizer = trained(1)
    load_tensors(folder, other, its_optimizer, Accelerator(cpu=True))
    inputs = batch(model.config)
    for _ in range(2):
        for (name, weight), (_, loaded) in zip(model.named_parameters(), other.named_parameters(), strict=True):
            assert torch.equal(weight, loaded), name
        expected, found = optimizer_tensors(model, optimizer), optimizer_tensors(other, its_optimizer)
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[name], found[name]) for name in expected)
        for one, its in ((model, optimizer), (other, its_optimizer)):
            one(**inputs).loss.backward()
            its.step()
            its.zero_grad()


def test_a_frozen_weight_is_loaded_and_gets_no_moments(trained, tmp_path):
    model, optimizer = trained(2)
    folder = save_checkpoint(tmp_path, 2, model, optimizer_tensors(model, optimizer), {})
    other, _ = trained(0)
    its_optimizer = torch.optim.Adam(other.parameters())
    load_tensors(folder, other, its_optimizer, Accelerator(cpu=True))
    assert torch.equal(other.get_parameter(FROZEN), model.get_parameter(FROZEN))
    assert other.get_parameter(FROZEN) not in its_optimizer.state
    assert len(its_optimizer.state) == len(list(other.parameters())) - 1


def test_other_processes_expect_the_tensors_that_the_main_one_sends(trained, tmp_path, monkeypatch):
    model, optimizer = trained(1)
    folder = save_checkpoint(tmp_path, 1, model, optimizer_tensors(model, optimizer), {})
    monkeypatch.setattr(sharding, "broadcast_object_list", lambda _: [["exp_avg", "exp_avg_sq", "step"]])
    shapes: dict[bool, list[torch.Size]] = {True: [], False: []}
    for is_main, found in shapes.items():
        monkeypatch.setattr(sharding, "broadcast", lambda tensor, found=found: (found.append(tensor.shape), tensor)[1])
        load_tensors(folder, model, optimizer, SimpleNamespace(is_main_process=is_main, device="cpu"))
    assert shapes[True] == shapes[False]
    assert torch.Size() in shapes[True]


@pytest.fixture
def mesh() -> Iterator[distributed.DeviceMesh]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield distributed.init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def test_shards_become_whole_and_whole_tensors_stay_what_they_are(mesh):
    tensor = torch.randn(5, 3)
    sharded = distribute_tensor(tensor, mesh, [Shard(0)])
    assert isinstance(sharded, DTensor)
    assert not isinstance(full_tensor(sharded), DTensor)
    assert torch.equal(full_tensor(sharded), tensor)
    assert full_tensor(tensor) is tensor
