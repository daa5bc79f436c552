import copy

import pytest
import torch
from torch import nn

from vaswani.models import int8_vaswani
from vaswani.models.int8_vaswani import (
    CutInt8Linear,
    Fbgemm,
    Int8Embedding,
    Int8IsMissing,
    Int8Linear,
    OneDnn,
    _pack,
    is_quantized,
    kernel_problem,
    quantize_rows,
)
from vaswani.models.packing_vaswani import projection


pytestmark = pytest.mark.smoke
CHOSEN = int8_vaswani.KERNEL


@pytest.fixture(autouse=True, params=[OneDnn, Fbgemm], ids=["oneDNN", "FBGEMM"])
def kernel(request, monkeypatch):
    """Multiply by this kernel, if the CPU can."""
    monkeypatch.setattr(int8_vaswani, "KERNEL", request.param)
    problem = kernel_problem.__wrapped__()
    if problem is not None:
        pytest.skip(problem)
    monkeypatch.setattr(int8_vaswani, "kernel_problem", lambda: None)
    return request.param


def int8_linear(layer: nn.Linear) -> Int8Linear:
    rows, scales = quantize_rows(layer.weight.detach())
    return Int8Linear(rows, scales[:, 0], None if layer.bias is None else layer.bias.detach())


def test_onednn_multiplies_where_the_cpu_has_vnni():
    assert CHOSEN is (OneDnn if torch.cpu._is_vnni_supported() else Fbgemm)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 64), (3, 5, 64)])
def test_a_layer_multiplies_what_is_rounded_exactly(shape, bias, kernel):
    layer = nn.Linear(64, 48, bias=bias)
    states = torch.randn(shape)
    rows, scales = quantize_rows(layer.weight.detach())
    quantized, state_scales = quantize_rows(states, kernel.largest)
    exact = (quantized.double() @ rows.double().T) * state_scales * scales[:, 0]
    computed = int8_linear(layer)(states)
    torch.testing.assert_close(computed, (exact + (layer.bias if bias else 0)).float())
    error = (computed - layer(states)).norm() / layer(states).norm()
    assert 0 < error < 0.02


@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_of_another_type_gives_that_type(bias):
    layer, states = nn.Linear(64, 48, bias=bias), torch.randn(3, 64)
    computed = int8_linear(layer).bfloat16()(states.bfloat16())
    torch.testing.assert_close(computed, layer(states).bfloat16(), atol=0.05, rtol=0)


def test_a_row_does_not_depend_on_the_rows_beside_it():
    layer, states = int8_linear(nn.Linear(64, 48)), torch.randn(5, 64)
    states[1:] *= 1000
    assert torch.equal(layer(states)[0], layer(states[:1])[0])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, OneDnn.few_rows, OneDnn.few_rows + 1])
def test_some_outputs_are_those_of_all(rows, bias):
    layer, ids, states = int8_linear(nn.Linear(64, 48, bias=bias)), torch.tensor([3, 4, 40]), torch.randn(rows, 64)
    assert torch.equal(layer.rows_of(ids)(states), layer(states)[:, ids])


def test_some_outputs_are_packed_once_and_for_many_rows_alone(kernel, monkeypatch):
    packed = []

    def pack(layers):
        packed.append(layers)
        return _pack(layers)

    monkeypatch.setattr(int8_vaswani, "_pack", pack)
    cut = int8_linear(nn.Linear(64, 48)).rows_of(torch.arange(20))
    project = projection(cut, "weight", [cut])
    few, many = torch.randn(3, 64), torch.randn(OneDnn.few_rows + 1, 64)
    before = project(few)
    assert packed == [[cut]] * (kernel is Fbgemm)
    project(many)
    assert torch.equal(project(few), before)
    assert packed == [[cut]]


@pytest.mark.parametrize("largest", [127, 63])
def test_rounding_is_to_the_nearest_step(largest):
    states = torch.tensor([[largest, 0.4, -0.6, -largest], [0.0, 0.0, 0.0, 0.0]])
    rows, scales = quantize_rows(states, largest)
    assert rows.tolist() == [[largest, 0, -1, -largest], [0, 0, 0, 0]]
    assert scales[0].item() == 1


def test_all_matrices_become_int8_and_those_that_are_one_stay_one(random_model):
    model = random_model()
    before, footprint = copy.deepcopy(model), model.get_memory_footprint()
    assert model.quantize() is model
    assert is_quantized(model)
    assert not any(type(module) is nn.Linear for module in model.modules())
    embeddings = (model.model.shared, model.model.encoder.embed_tokens, model.model.decoder.embed_tokens)
    assert all(type(embedding) is Int8Embedding for embedding in embeddings)
    assert len({module.weight.data_ptr() for module in (*embeddings, model.lm_head)}) == 1
    assert model.get_memory_footprint() < 0.6 * footprint  # of so small a model, much is gains and biases
    ids = torch.arange(1, 6).expand(2, 5)
    expected, logits = (each(ids, decoder_input_ids=ids).logits for each in (before, model))
    assert 0 < (logits - expected).norm() / expected.norm() < 0.05
    assert random_model().bfloat16().quantize().dtype is torch.float32


@pytest.mark.parametrize("lm_head_bias", [False, True])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_the_fast_search_finds_what_the_modules_give(num_beams, lm_head_bias, random_model, batch, monkeypatch):
    model = random_model(lm_head_bias=lm_head_bias)
    if lm_head_bias:
        torch.nn.init.normal_(model.lm_head.bias)
    model.quantize()
    given = {name: batch(model.config)[name] for name in ("input_ids", "attention_mask")}
    given |= {"num_beams": num_beams, "max_new_tokens": 8}
    fast = model.generate(**given)
    monkeypatch.setattr("vaswani.models.modeling_vaswani.is_as_written", lambda *_: False)
    assert torch.equal(model.generate(**given), fast)


def test_a_table_of_positions_stays_as_it_is(random_model):
    model = random_model(position_embedding_type="learned").quantize()
    assert type(model.model.encoder.embed_positions) is nn.Embedding


def test_it_cannot_be_quantized_twice_trained_or_saved(random_model, tmp_path):
    model = random_model().train().quantize()
    assert not model.training  # nor does it drop anything
    with pytest.raises(ValueError, match="in int8 already"):
        model.quantize()
    modes = [module.training for module in model.modules()]
    for part in (model, model.model.encoder):
        with pytest.raises(ValueError, match="cannot be trained"):
            part.train()
    assert [module.training for module in model.modules()] == modes  # a refusal leaves it as it was
    with pytest.raises(ValueError, match="cannot be saved"):
        model.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


def test_adapters_and_other_devices_are_refused_and_nothing_changed(random_model):
    peft = pytest.importorskip("peft")
    model = random_model()
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(ValueError, match=r"adapters .*merge them"):
        adapted.base_model.model.quantize()
    assert not is_quantized(adapted)
    with pytest.raises(ValueError, match="int8 is for CPUs, and the model is on 'meta'"):
        random_model().to("meta").quantize()


def test_where_the_kernel_is_missing_a_model_stays_as_it_is(random_model, monkeypatch):
    model = random_model()
    monkeypatch.setattr(int8_vaswani, "kernel_problem", lambda: "no VNNI")
    with pytest.raises(Int8IsMissing, match="int8 is not possible here: no VNNI"):
        model.quantize()
    assert not is_quantized(model)


def test_rows_that_would_overflow_are_found_out(monkeypatch):
    monkeypatch.setattr(int8_vaswani, "KERNEL", Fbgemm)
    monkeypatch.setattr(Fbgemm, "largest", 127)
    assert torch.cpu._is_vnni_supported() or "otherwise than expected" in kernel_problem.__wrapped__()


@pytest.mark.parametrize("kind", [Int8Linear, CutInt8Linear])
def test_a_kernel_that_computes_otherwise_is_found_out(kind, monkeypatch):
    forward = Int8Linear.forward
    monkeypatch.setattr(kind, "forward", lambda self, states: forward(self, states) * 1.001)
    assert "otherwise than expected" in kernel_problem.__wrapped__()


def test_a_torch_without_the_kernel_or_with_another_one_is_told(monkeypatch):
    def missing(self, states):
        raise TypeError("unexpected argument\nand much more")

    missing_kernel = f"torch {torch.__version__} has no kernel for it on this CPU"
    with monkeypatch.context() as patched:
        patched.setattr(Int8Linear, "forward", missing)
        assert kernel_problem.__wrapped__() == f"{missing_kernel} (unexpected argument)"
    monkeypatch.setattr(torch.ops, "onednn", object())
    monkeypatch.setattr(torch.ops, "quantized", object())
    assert kernel_problem.__wrapped__().startswith(missing_kernel)
