import copy
import gc
import math
from weakref import ref

import pytest
import torch
from torch import nn
from transformers import AttentionInterface

from vaswani.models.attention_vaswani import attend
from vaswani.models.generation_vaswani import ModelState
from vaswani.models.incremental_vaswani import IncrementalState, KVCache, is_as_written
from vaswani.models.modeling_vaswani import VaswaniDecoderLayer


SOURCE = {"input_ids": torch.arange(1, 6).expand(3, 5), "attention_mask": torch.ones(3, 5, dtype=torch.int64)}


def is_fast(model) -> bool:
    """Tell which state the model gives."""
    states = (model.get_encoder()(**SOURCE).last_hidden_state,)
    state = model.decoder_state(1, {"encoder_outputs": states, "attention_mask": SOURCE["attention_mask"]})
    assert type(state) is (IncrementalState if is_as_written(model, model.model.decoder) else ModelState)
    return type(state) is IncrementalState


def hook(model, monkeypatch):
    model.model.decoder.layers[0].fc1.register_forward_hook(lambda *given: None)


def pre_hook(model, monkeypatch):
    model.model.decoder.layers[1].encoder_attn.register_forward_pre_hook(lambda *given: None)


def hook_of_all_modules(model, monkeypatch):
    monkeypatch.setattr(torch.nn.modules.module, "_global_forward_hooks", {0: lambda *given: None})


def hook_on_the_projection(model, monkeypatch):
    model.lm_head.register_forward_hook(lambda *given: None)


def hook_on_the_whole(model, monkeypatch):
    model.register_forward_hook(lambda *given: None)


def hook_on_both_stacks(model, monkeypatch):
    model.model.register_forward_hook(lambda *given: None)


def compiled_layer(model, monkeypatch):
    model.model.decoder.layers[0].compile()


def forward_of_an_object(model, monkeypatch):
    layer = model.model.decoder.layers[0].fc2
    layer.forward = layer.forward


def forward_of_a_class(model, monkeypatch):
    forward = nn.LayerNorm.forward
    monkeypatch.setattr(nn.LayerNorm, "forward", lambda self, states: forward(self, states))


def forward_of_a_subclass(model, monkeypatch):
    model.__class__ = type("Own", (type(model),), {"forward": lambda self, **given: None})


def inputs_of_ones_own(model, monkeypatch):
    model.prepare_inputs_for_generation = lambda *given, **named: {}


def inputs_of_another_model(model, monkeypatch):
    model.prepare_inputs_for_generation = copy.deepcopy(model).prepare_inputs_for_generation


def subclass_of_a_parameter(model, monkeypatch):
    layer = model.model.decoder.layers[0].fc1
    layer.weight = type("Quantized", (nn.Parameter,), {})(layer.weight.data)


def weight_elsewhere(model, monkeypatch):
    layer = model.model.decoder.layers[0].fc1
    layer.weight = nn.Parameter(layer.weight.data.to("meta"))


def subclass_of_a_module(model, monkeypatch):
    model.model.decoder.layers[0].fc1 = type("Adapted", (nn.Linear,), {})(16, 32)


def training(model, monkeypatch):
    model.train()


def training_of_a_stack(model, monkeypatch):
    model.model.decoder.train()


def training_of_an_attention(model, monkeypatch):
    model.model.decoder.layers[1].encoder_attn.train()


def attention_of_ones_own(model, monkeypatch):
    AttentionInterface.register("ones_own", lambda *given, **named: None)
    model.config._attn_implementation = "ones_own"


def attention_that_nobody_registered(model, monkeypatch):
    model.config._attn_implementation = "elsewhere"


def feed_forward_of_a_class(model, monkeypatch):
    monkeypatch.setattr(VaswaniDecoderLayer, "_feed_forward", lambda self, states: states)


def residual_of_an_object(model, monkeypatch):
    model.model.decoder.layers[0]._add_and_norm = lambda norm, states, output: states


def mask_of_an_object(model, monkeypatch):
    model.model.decoder.self_attention_mask = lambda *given: None


def cache_order_of_ones_own(model, monkeypatch):
    monkeypatch.setattr(type(model), "_reorder_cache", lambda self, cache, rows: cache, raising=False)


@pytest.mark.parametrize(
    "change",
    [
        hook, pre_hook, hook_of_all_modules, hook_on_the_projection, hook_on_the_whole, hook_on_both_stacks,
        compiled_layer, forward_of_an_object, forward_of_a_class, forward_of_a_subclass, inputs_of_ones_own,
        inputs_of_another_model, subclass_of_a_parameter, weight_elsewhere, subclass_of_a_module, training,
        training_of_a_stack, training_of_an_attention, attention_of_ones_own, attention_that_nobody_registered,
        cache_order_of_ones_own, feed_forward_of_a_class, residual_of_an_object, mask_of_an_object,
    ],
)  # fmt: skip
def test_a_changed_model_is_asked_itself(change, random_model, monkeypatch):
    model = random_model()
    assert is_fast(model)
    states = (model.get_encoder()(**SOURCE).last_hidden_state,)
    change(model, monkeypatch)
    assert not is_as_written(model, model.model.decoder)
    assert isinstance(model.decoder_state(1, {"encoder_outputs": states}), ModelState)


def test_what_leaves_a_model_as_it_was_keeps_it_fast(random_model):
    model = random_model()
    model.generate(**SOURCE, num_beams=1, output_attentions=True, return_dict_in_generate=True, max_new_tokens=2)
    assert is_fast(model)
    removed = model.lm_head.register_forward_hook(lambda *given: None)
    removed.remove()
    assert is_fast(model)
    model.resize_token_embeddings(30, mean_resizing=False)  # whose new modules are in training mode, without effect
    assert is_fast(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_as_written(model, model.model.decoder)
        assert len(model.generate(**SOURCE, max_new_tokens=2)) == 3


def test_a_source_of_padding_alone_gives_numbers_too(random_model):
    mask = SOURCE["attention_mask"].index_fill(0, torch.tensor([1]), 0)
    how = {"num_beams": 2, "max_new_tokens": 2, "return_dict_in_generate": True, "output_logits": True}
    output = random_model().generate(SOURCE["input_ids"], attention_mask=mask, **how)
    assert torch.stack(output.logits).isfinite().all()


def cache_of(random_model, num_beams: int, splits_heads: bool = True) -> KVCache:
    model = random_model(decoder_attention_heads=2, head_dim=6, v_head_dim=4)
    attentions = [layer.self_attn for layer in model.model.decoder.layers]
    return KVCache(attentions, torch.zeros(2, 5, 16), num_beams, torch.float32, splits_heads)


@pytest.mark.parametrize(
    ("num_beams", "first_rooms"), [(1, [16, 32, 48, 64, 80, 100]), (4, [16, 32]), (30, [2, 4, 6])]
)
def test_a_cache_grows_by_a_quarter_and_at_first_by_a_few_positions(num_beams, first_rooms, random_model):
    cache, rooms = cache_of(random_model, num_beams), []
    while len(rooms) < len(first_rooms):
        cache.advance(None)
        room = cache.mask().shape[2] // num_beams
        if room not in rooms:
            rooms.append(room)
    assert rooms == first_rooms
    assert cache.keys[1].shape == (4, rooms[-1] * num_beams, 6)
    assert cache.values[1].shape == (4, rooms[-1] * num_beams, 4)


def test_a_hypothesis_sees_what_its_parents_saw_and_itself(random_model):
    cache = cache_of(random_model, num_beams=2)
    cache.advance(None)
    cache.advance(torch.tensor([[0, 0], [1, 0]]))
    assert (cache.mask() == 0).nonzero().tolist() == [
        [0, 0, 0], [0, 0, 2], [0, 1, 0], [0, 1, 3],  # both came from the first slot
        [1, 0, 1], [1, 0, 2], [1, 1, 0], [1, 1, 3],  # they changed places
    ]  # fmt: skip
    assert (cache.mask()[cache.mask() != 0] == -math.inf).all()
    assert cache.paths.tolist() == [[[0, 2], [0, 3]], [[1, 2], [0, 3]]]
    assert cache.open_slots.tolist() == [2, 3]
    keys, values = torch.randn(4, 2, 6), torch.randn(4, 2, 4)
    all_keys, all_values = cache.append(1, keys, values)
    assert torch.equal(all_keys[:, 2:4], keys)
    assert torch.equal(all_values[:, 2:4], values)
    assert not all_keys[:, :2].any()
    assert not cache.keys[0].any()
    cache.select(torch.tensor([1]))
    assert torch.equal(cache.keys[1][:, 2:4], keys[2:])
    assert (cache.mask() == 0).nonzero().tolist() == [[0, 0, 1], [0, 0, 2], [0, 1, 0], [0, 1, 3]]


def test_heads_lie_side_by_side_where_they_are_not_split(random_model):
    cache = cache_of(random_model, 3, splits_heads=False)
    cache.advance(None)
    assert cache.keys[0].shape == (2, 48, 2 * 6)
    assert cache.values[0].shape == (2, 48, 2 * 4)
    cache.keys[0][1] = 1
    cache.select(torch.tensor([1]))
    assert cache.keys[0].shape == (1, 48, 2 * 6)
    assert cache.keys[0].all()


@pytest.mark.parametrize("restriction", [1, 2, 5, 40])
def test_a_restricted_cache_shows_the_last_positions_and_drops_the_others(restriction, random_model):
    num_beams, room = 2, 0
    model = random_model(attention_restriction=restriction)
    attentions = [layer.self_attn for layer in model.model.decoder.layers]
    cache = KVCache(attentions, torch.zeros(3, 5, 16), num_beams, torch.float32, splits_heads=True)
    for length in range(1, 200):
        cache.advance(None)
        for layer in range(2):
            states = torch.full((6, num_beams, 8), float(length))
            keys, _ = cache.append(layer, states, states)
        seen = keys[0, cache.mask()[0, 0] == 0, 0].tolist()
        assert keys[0, cache.paths[0, 0], 0].tolist() == seen
        assert (keys[0, cache.open_slots, 0] == length).all()
        assert seen == list(range(max(1, length - restriction + 1), length + 1))
        room = max(room, cache.mask().shape[2] // num_beams)
    assert room <= restriction + max(16, restriction // 4)
    assert cache.length == 199


@pytest.mark.parametrize("is_masked", [True, False])
def test_attention_is_that_of_equation_1(is_masked):
    query, keys, values = torch.randn(6, 3, 8), torch.randn(6, 5, 8), torch.randn(6, 5, 4)
    mask = torch.zeros(6, 3, 5).index_fill(2, torch.tensor([1, 4]), -math.inf) if is_masked else None
    output = attend(query, keys.mT, values, mask, 8**-0.5, num_heads=2)
    expected = nn.functional.scaled_dot_product_attention(query, keys, values, mask)  # (B * H, K, d_v)
    expected = torch.stack(
        [torch.cat([expected[2 * b, k], expected[2 * b + 1, k]]) for b in range(3) for k in range(3)]
    )
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_beams", [1, 4])
def test_caches_are_freed_as_soon_as_a_search_ends(dtype, num_beams, random_model, monkeypatch):
    model, caches = random_model().to(dtype), []
    advance = KVCache.advance

    def advanced(self, parents):
        caches.append(ref(self))
        advance(self, parents)

    monkeypatch.setattr(KVCache, "advance", advanced)
    gc.disable()  # which would find them later
    try:
        model.generate(**SOURCE, num_beams=num_beams, max_new_tokens=4)
        assert caches
        assert not any(cache() for cache in caches)
    finally:
        gc.enable()
