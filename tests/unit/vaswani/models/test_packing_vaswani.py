import copy
import gc
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from vaswani.models import packing_vaswani
from vaswani.models.packing_vaswani import KEPT, can_be_packed, fingerprint, kept, projection, rows_of


BFLOAT16 = can_be_packed(torch.zeros(1, 1, dtype=torch.bfloat16))
SOURCE = torch.arange(1, 6).expand(3, 5)


def step(model):
    model.train()
    model(input_ids=SOURCE, labels=SOURCE).loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    model.eval()


def load(model):
    model.load_state_dict({name: weight + 0.1 for name, weight in model.state_dict().items()})


def write_without_a_version(model):
    for weight in model.parameters():
        weight.data.mul_(1.1)


def write_a_part_without_a_version(model):
    for layer in model.model.decoder.layers:
        layer.encoder_attn.out_proj.weight.data[:, 3] = 0.5
        layer.encoder_attn.v_proj.weight.data[2] = 0.5


def change_places_without_a_version(model):
    for layer in model.model.decoder.layers:
        for weight in (layer.self_attn.v_proj.weight, layer.fc1.weight):
            weight.data.copy_(weight.data.flip(0))


def step_of_biases_alone(model):
    for name, weight in model.named_parameters():
        weight.requires_grad_(name.endswith("bias"))
    step(model)


def replace(model):
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight = nn.Parameter(module.weight.detach() * 1.1)


def merge_an_adapter(model):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj", "fc1"], init_lora_weights=False)
    return peft.get_peft_model(model, config).merge_and_unload()


def cast(model):
    model.double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "change",
    [
        step,
        step_of_biases_alone,
        load,
        write_without_a_version,
        write_a_part_without_a_version,
        change_places_without_a_version,
        replace,
        merge_an_adapter,
        cast,
    ],
)
def test_what_is_kept_goes_when_a_weight_changes(change, dtype, random_model):
    model = random_model().to(dtype)
    before = logits(model)
    assert torch.equal(before, logits(model))
    model = change(model) or model
    fresh = copy.deepcopy(model)
    assert not any(module in KEPT for module in fresh.modules())
    assert torch.equal(logits(model), logits(fresh))
    assert not torch.equal(logits(model), before)


def logits(model) -> torch.Tensor:
    """Return the logits of two steps of greedy search."""
    output = model.generate(
        input_ids=SOURCE,
        attention_mask=torch.ones_like(SOURCE),
        num_beams=2,
        max_new_tokens=2,
        return_dict_in_generate=True,
        output_logits=True,
    )
    return torch.stack(output.logits)


def test_a_control_that_looks_at_no_weight_keeps_what_is_stale(random_model, monkeypatch):
    monkeypatch.setattr(packing_vaswani, "fingerprint", lambda weight: 0)
    model = random_model()
    logits(model)
    load(model)
    assert not torch.equal(logits(model), logits(copy.deepcopy(model)))


def test_it_is_made_once_and_dies_with_its_owner():
    layer, made = nn.Linear(4, 3), []
    for _ in range(3):
        assert kept(layer, "weight", [layer], lambda: made.append(1) or "packed") == "packed"
    assert len(made) == 1
    assert kept(layer, "another", [layer], lambda: "other") == "other"
    gc.collect()
    before = len(KEPT)
    del layer
    gc.collect()
    assert len(KEPT) == before - 1


def test_copies_and_pickles_of_a_model_know_nothing_of_it(random_model):
    model = random_model().bfloat16()
    logits(model)
    assert pickle.loads(pickle.dumps(model.state_dict())).keys() == model.state_dict().keys()
    assert torch.equal(logits(copy.deepcopy(model)), logits(model))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_several_layers_stand_side_by_side_and_any_may_lack_a_bias(dtype):
    layers = [nn.Linear(8, 3).to(dtype), nn.Linear(8, 5, bias=False).to(dtype)]
    states = torch.randn(2, 8, dtype=dtype)
    together = projection(layers[0], "both", layers)(states)
    expected = torch.cat([layer(states) for layer in layers], dim=-1)
    torch.testing.assert_close(together, expected)
    no_bias = projection(layers[1], "alone", layers[1:])(states)
    torch.testing.assert_close(no_bias, layers[1](states))


@pytest.mark.skipif(not BFLOAT16, reason="this CPU does not multiply bfloat16")
def test_bfloat16_is_packed_on_a_cpu():
    layer = nn.Linear(8, 3).bfloat16()
    projection(layer, "weight", [layer])
    packed, _ = KEPT[layer]["weight"][1]
    assert packed.is_mkldnn
    assert not can_be_packed(layer.weight.to("meta"))
    assert projection(layer.float(), "weight", [layer]).multiply is layer


def test_a_fingerprint_tells_weights_apart():
    weight = torch.randn(300, 7)
    marks = [fingerprint(weight)]
    weight.mul_(1)  # a new version of the same values
    marks.append(fingerprint(weight))
    weight.data[150:] += 1
    marks.append(fingerprint(weight))
    copies = weight.clone(), weight.clone()
    marks += map(fingerprint, copies)
    assert len(set(marks)) == 5
    with torch.inference_mode():
        assert fingerprint(torch.ones(3)) != fingerprint(torch.zeros(3))
    assert fingerprint(torch.full((2,), torch.nan))[-1] == fingerprint(torch.full((2,), torch.nan))[-1]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_some_outputs_are_those_of_all(dtype, bias):
    layer, ids, states = (
        nn.Linear(8, 30, bias=bias).to(dtype),
        torch.tensor([3, 4, 29]),
        torch.randn(2, 8, dtype=dtype),
    )
    cut = rows_of(layer, ids)
    torch.testing.assert_close(projection(cut, "weight", [cut])(states), layer(states)[:, ids])


@pytest.mark.parametrize("is_supported", [True, False])
def test_onednn_says_whether_a_cpu_multiplies_bfloat16(is_supported, monkeypatch):
    onednn = SimpleNamespace(_is_mkldnn_bf16_supported=lambda: is_supported)
    monkeypatch.setattr(torch.ops, "mkldnn", onednn)
    assert packing_vaswani.multiplies_bfloat16() == is_supported


def test_without_onednn_a_cpu_does_not_multiply_bfloat16(monkeypatch):
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace())
    assert not packing_vaswani.multiplies_bfloat16()
