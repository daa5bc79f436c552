"""What lies between the products: compiled as written, for any number of rows, and asked for by `compile_config`."""

import copy
import shutil
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import relu
from transformers import CompileConfig

from vaswani.models import fusion_vaswani, incremental_vaswani, int8_vaswani, modeling_vaswani
from vaswani.models.attention_vaswani import attend
from vaswani.models.fusion_vaswani import (
    AS_WRITTEN,
    CannotCompile,
    Fused,
    Piece,
    add_and_norm,
    attend_alone,
    compiled,
    enter,
    fold,
    leave,
    self_attend,
    self_attend_alone,
    summarize,
)
from vaswani.models.int8_vaswani import kernel_problem
from vaswani.models.largest_vaswani import block_maxima


needs_a_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
# int8 rounds what differs in its last bit to another step, and attention rounds to bfloat16.
CLOSE = {"float32": {"atol": 1e-5, "rtol": 1e-4}, "int8": {"atol": 0.3, "rtol": 0}}
needs_int8 = pytest.mark.skipif(kernel_problem() is not None, reason=str(kernel_problem()))


def leaving(rows, width, is_int8):
    """Return a product of int8 with scales and bias, or one that is whole; `rows` is a tuple."""
    product, scales, bias = torch.randn(*rows, width), torch.rand(*rows, 1) + 0.5, torch.randn(width)
    return (product, scales, bias) if is_int8 else (product, None, None)


def arguments_of(function, rows, keys, is_int8):
    """Return arguments of one of the functions, for heads of 4 and 6."""
    cache = [torch.randn(rows, 2, keys, 4), torch.randn(rows, 2, keys, 6)]
    mask = torch.zeros(rows, 1, keys).masked_fill(torch.arange(keys) > keys // 2, -torch.inf)
    return {
        "enter": lambda: (torch.randn(rows, 8).bfloat16(), torch.float32, is_int8),
        "leave_as": lambda: (*leaving((rows,), 8, is_int8), torch.bfloat16),
        "add_and_norm": lambda: (
            *leaving((rows,), 8, is_int8),
            torch.randn(rows, 8),
            torch.randn(8),
            torch.randn(8),
            1e-5,
        ),
        "activate": lambda: (*leaving((rows,), 8, is_int8), relu),
        "fold": lambda: (*leaving((rows, 3), 20, is_int8), 2, (4, 6), torch.float32),
        "attend_alone": lambda: (*leaving((rows,), 8, is_int8), cache[0].mT.contiguous(), cache[1], mask, 0.5),
        "self_attend_alone": lambda: (*leaving((rows,), 28, is_int8), torch.tensor([keys // 2]), *cache, mask, 0.5),
        "self_attend": lambda: (
            *leaving((rows * 3,), 28, is_int8),  # 3 hypotheses of each sentence
            torch.tensor([1, 2, 0]) + keys,
            torch.randn(rows, keys + 3, 8),
            torch.randn(rows, keys + 3, 12),
            torch.randint(0, keys + 3, (rows, 3, keys)),
            2,
            0.5,
        ),
        "summarize": lambda: (torch.randn(rows, 45),),
    }[function.__name__]()


@needs_a_compiler
@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize("function", fusion_vaswani.DYNAMIC, ids=lambda function: function.__name__)
def test_each_function_gives_compiled_what_it_gives_as_written(function, is_int8):
    piece = Piece(function)
    for rows, keys in ((1, 3), (5, 1), (4, 16), (7, 40)):
        given = arguments_of(function, rows, keys, is_int8)
        kept = copy.deepcopy(given)
        found, expected = piece(*given), function(*kept)
        assert len(found) == len(expected)
        for one, other in zip((*found, *given), (*expected, *kept), strict=True):  # what it writes to, too
            if isinstance(one, torch.Tensor) and one.dtype is torch.uint8:
                assert (one.int() - other.int()).abs().max() <= 1  # a rounding that hangs on the last bit
            elif isinstance(one, torch.Tensor):
                torch.testing.assert_close(one, other)
            else:
                assert one == other
    assert len(piece.compiled) == 1


@needs_a_compiler
def test_another_width_or_type_is_compiled_by_itself():
    piece = Piece(enter)
    for states in (torch.randn(3, 8), torch.randn(3, 16), torch.randn(3, 16).bfloat16(), torch.randn(9, 16)):
        rows, scales = piece(states, torch.float32, False)
        assert torch.equal(rows, states.float())
        assert scales is None
    assert len(piece.compiled) == 3
    assert piece(torch.randn(3, 8), torch.bfloat16, False)[0].dtype is torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_of_single_queries_is_attention(dtype):
    product, keys, values = torch.randn(3, 8, dtype=dtype), torch.randn(3, 2, 4, 9), torch.randn(3, 2, 9, 6)
    mask = torch.randn(3, 1, 9)
    found, _ = attend_alone(product, None, None, keys, values, mask, 0.5)
    query = product.float().view(3, 2, 1, 4).flatten(0, 1)
    given = keys.flatten(0, 1), values.flatten(0, 1), mask.repeat_interleave(2, 0)
    torch.testing.assert_close(found, attend(query, *given, 0.5, 2).to(dtype))
    # the control: without the mask it is another
    assert not torch.allclose(attend_alone(product, None, None, keys, values, mask * 0, 0.5)[0], found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_and_values_go_into_their_slot(dtype):
    product, keys, values = torch.randn(3, 28, dtype=dtype), torch.zeros(3, 2, 5, 4), torch.zeros(3, 2, 5, 6)
    mask = torch.full((3, 1, 5), -torch.inf)
    mask[..., 2] = 0
    found, _ = self_attend_alone(product, None, None, torch.tensor([2]), keys, values, mask, 0.5)
    torch.testing.assert_close(found, product[:, 16:])  # it sees nothing but itself
    assert torch.equal(keys[:, :, 2].flatten(1), product[:, 8:16].float())
    assert torch.equal(values[:, :, 2].flatten(1), product[:, 16:].float())
    assert not keys[:, :, [0, 1, 3, 4]].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_and_values_of_several_hypotheses_go_into_their_slots(dtype):
    product, keys, values = torch.randn(6, 28, dtype=dtype), torch.zeros(3, 5, 8), torch.zeros(3, 5, 12)
    slots = torch.tensor([2, 3])  # of two hypotheses of each sentence, which see nothing but themselves
    found, _ = self_attend(product, None, None, slots, keys, values, slots[:, None].expand(3, 2, 1), 2, 0.5)
    torch.testing.assert_close(found, product[:, 16:])
    assert torch.equal(keys[:, 2:4].flatten(0, 1), product[:, 8:16].float())
    assert torch.equal(values[:, 2:4].flatten(0, 1), product[:, 16:].float())
    assert not keys[:, [0, 1, 4]].any()


def test_attention_along_paths_is_attention_that_sees_nothing_else():
    product, keys, values = torch.randn(6, 28), torch.randn(3, 9, 8), torch.randn(3, 9, 12)
    paths = torch.stack([torch.randperm(8)[:4] for _ in range(6)]).view(3, 2, 4)
    found, _ = self_attend(product, None, None, torch.tensor([8, 7]), keys, values, paths, 2, 0.5)
    heads = [states.unflatten(2, (2, -1)).transpose(1, 2).flatten(0, 1) for states in (keys, values)]  # (B * H, N, d)
    mask = torch.full((3, 2, 9), -torch.inf).scatter(2, paths, 0).repeat_interleave(2, 0)
    query = product[:, :8].view(3, 2, 2, 4).transpose(1, 2).flatten(0, 1)
    torch.testing.assert_close(found, attend(query, heads[0].mT, heads[1], mask, 0.5, 2))
    assert not torch.allclose(found, attend(query, heads[0].mT, heads[1], None, 0.5, 2))


@pytest.mark.parametrize("size", [7, 8, 45])
def test_a_summary_has_the_largest_logits_and_the_sum_of_all(size):
    logits = torch.randn(5, size) * 20
    logits[2, -1] = 1e3  # of 7 and of 45 in no block; exp of it is beyond float32
    maxima, log_normalizers = summarize(logits)
    assert torch.equal(maxima, block_maxima(logits))
    torch.testing.assert_close(log_normalizers, logits.logsumexp(1, keepdim=True))


def test_heads_are_those_of_each_layer_in_turn():
    outputs = torch.arange(2 * 3 * 20.0).view(2, 3, 20)  # 2 sentences, 3 hypotheses, 2 heads of 4 and of 6
    narrow, wide = fold(outputs, None, None, 2, (4, 6), torch.float32)
    assert torch.equal(narrow[3, 1], outputs[1, 1, 4:8])  # second sentence, second head, second hypothesis
    assert torch.equal(wide[0, 2], outputs[0, 2, 8:14])


def test_int8_gets_its_scales_and_its_bias_at_last():
    product, scales, bias = leaving((3,), 8, is_int8=True)
    torch.testing.assert_close(leave(product, scales, bias), product * scales + bias)
    torch.testing.assert_close(leave(product, scales, None), product * scales)
    states, rows, row_scales = add_and_norm(product, scales, bias, torch.randn(3, 8), torch.ones(8), bias, 1e-5)
    steps = rows.float() - (int8_vaswani.KERNEL.largest + 1 if rows.dtype is torch.uint8 else 0)
    assert torch.equal(steps, steps.round())
    torch.testing.assert_close(steps * row_scales, states, atol=0.03, rtol=0)


@needs_a_compiler
@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("precision", ["float32", pytest.param("int8", marks=needs_int8)])
def test_a_compiled_model_translates_as_one_that_is_not(precision, num_beams, random_model, batch, monkeypatch):
    # Of two tokens that are about as good, bfloat16 may choose another one: only what is compiled may have it.
    monkeypatch.setattr(incremental_vaswani, "attention_dtype", lambda model, in_one_pass: torch.float32)
    model = random_model()
    model = model.quantize() if precision == "int8" else model
    given = {name: batch(model.config)[name] for name in ("input_ids", "attention_mask")}
    for rows in (slice(4), slice(1), slice(3, 4), slice(1, 3)):  # one without padding, too
        part = {name: tensor[rows] for name, tensor in given.items()} | {"num_beams": num_beams}
        part |= {"return_dict_in_generate": True, "output_logits": True} if num_beams > 1 else {"min_new_tokens": 20}
        expected, found = model.generate(**part), model.generate(**part, compile_config=CompileConfig())
        if num_beams > 1:
            torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, atol=0.02, rtol=0)
            torch.testing.assert_close(found.logits[0], expected.logits[0], **CLOSE[precision])
        else:
            assert torch.equal(found, expected)


@needs_a_compiler
@pytest.mark.parametrize("length", [{"min_new_tokens": 7}, {"max_new_tokens": 3}, {"length_penalty": 2.0}])
def test_a_compiled_beam_search_finds_what_one_that_is_not_does(length, random_model, batch):
    model = random_model()  # which bans <pad>, and at first </s>
    with torch.no_grad():
        model.lm_head.weight[1:4] *= 8  # so that some tokens are likely, and the search has to choose
    given = {name: batch(model.config)[name] for name in ("input_ids", "attention_mask")} | {"num_beams": 3} | length
    expected, found = model.generate(**given), model.generate(**given, compile_config=CompileConfig())
    assert torch.equal(found, expected)


@needs_a_compiler
@pytest.mark.parametrize("restriction", [None, 5])
@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("precision", ["float32", pytest.param("int8", marks=needs_int8)])
@torch.no_grad()
def test_each_step_of_a_compiled_model_gives_the_same_logits(precision, num_beams, restriction, random_model, batch):
    model = random_model(attention_restriction=restriction)
    model = model.quantize() if precision == "int8" else model
    given = {name: batch(model.config)[name] for name in ("input_ids", "attention_mask")}
    logits = []
    for fused in (AS_WRITTEN, compiled()):
        encoded = model.encode_source(**given, fused=fused) or model.model.encoder(**given)
        rows = {"encoder_outputs": encoded.last_hidden_state[None].repeat_interleave(num_beams, 1)}
        rows["attention_mask"] = given["attention_mask"].repeat_interleave(num_beams, 0)
        state = model.decoder_state(num_beams, rows, fused)
        steps = []
        for step in range(20):  # the cache grows at 16
            tokens = (torch.arange(4 * num_beams) * (step + 3) % 22).view(-1, num_beams, 1)
            if step == 9:
                state.select(torch.tensor([1, 3]))
            tokens = tokens[: 2 if step >= 9 else 4]
            parents = None if step == 0 or num_beams == 1 else torch.tensor([0, 0, 2]).expand(len(tokens), -1)
            steps.append(state.step(tokens, parents).clone())
        logits.append(torch.cat(steps))
    torch.testing.assert_close(logits[1], logits[0], **CLOSE[precision])
    assert not torch.allclose(logits[0][:4], logits[0][4:8], atol=0.5)  # they tell one step from another


@needs_int8
@torch.no_grad()
def test_single_queries_alone_read_bfloat16_on_any_cpu(random_model, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    model, fused = random_model(), replace(AS_WRITTEN, attend_alone=attend_alone, self_attend_alone=self_attend_alone)
    rows = {"encoder_outputs": torch.randn(1, 2, 7, 16)}
    for quantized in (False, True):
        model = model.quantize() if quantized else model
        for num_beams, how in ((1, fused), (1, AS_WRITTEN), (2, replace(fused, self_attend=self_attend))):
            several = {"encoder_outputs": rows["encoder_outputs"].repeat_interleave(num_beams, 1)}
            state = model.decoder_state(num_beams, several, how)
            expected = torch.bfloat16 if quantized and num_beams == 1 and how is fused else torch.float32
            assert {state.cache.keys[0].dtype, state.layers[1].source_values.dtype} == {expected}


def test_it_is_compiled_where_that_is_asked_for(random_model, batch, monkeypatch):
    model, used = random_model(), []
    monkeypatch.setattr(modeling_vaswani, "compiled", lambda: used.append("compiled") or AS_WRITTEN)
    given = {name: batch(model.config)[name] for name in ("input_ids", "attention_mask")} | {"max_new_tokens": 2}
    model.generate(**given)
    assert not used
    model.generation_config.compile_config = CompileConfig()
    model.generate(**given)
    assert used
    used.clear()
    model.generate(**given, disable_compile=True)
    model.generate(**given, compile_config=CompileConfig(mode="default"))  # transformers' own loop
    model.model.encoder.layers[0].fc1.register_forward_hook(lambda *given: None)
    model.model.decoder.layers[0].fc1.register_forward_hook(lambda *given: None)
    model.generate(**given)  # a hook has to be called
    assert not used


@pytest.mark.parametrize("num_beams", [1, 2])
def test_encoder_and_decoder_use_what_is_compiled(num_beams, random_model, batch, monkeypatch):
    model, calls = random_model(), []

    def spied(function):
        return lambda *given: calls.append(function.__name__) or function(*given)

    fused = Fused(*map(spied, fusion_vaswani.DYNAMIC))
    monkeypatch.setattr(modeling_vaswani, "compiled", lambda: fused)
    given = {name: batch(model.config)[name] for name in ("input_ids", "attention_mask")}
    model.generate(**given, num_beams=num_beams, max_new_tokens=1, compile_config=CompileConfig())
    assert calls.count("add_and_norm") == 2 * 2 + 2 * 3  # in two layers of each
    assert calls.count("activate") == 2 + 2
    assert calls.count("leave_as") == 2 + 1  # in the encoder's layers, and of all keys and values of the source
    assert calls.count("self_attend_alone") == calls.count("attend_alone") == (2 if num_beams == 1 else 0)
    assert calls.count("self_attend") == (0 if num_beams == 1 else 2)
    assert calls.count("fold") == (0 if num_beams == 1 else 2)
    assert calls.count("summarize") == (0 if num_beams == 1 else 1)


@pytest.mark.parametrize(
    ("problem", "said"),
    [(RuntimeError("no g++ here\nand much more"), r"no g\+\+ here"), (AssertionError(), "AssertionError")],
)
def test_without_a_compiler_it_is_said_so(problem, said, monkeypatch):
    def missing(*given, **settings):
        raise problem

    monkeypatch.setattr(torch._inductor, "standalone_compile", missing)
    with pytest.raises(CannotCompile, match=rf"^torch \S+ cannot compile here: {said}$"):
        Piece(enter)(torch.randn(2, 8), torch.float32, False)
    compiled.cache_clear()
