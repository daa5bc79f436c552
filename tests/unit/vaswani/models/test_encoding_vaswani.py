import pytest
import torch

from vaswani.models import encoding_vaswani, modeling_vaswani
from vaswani.models.encoding_vaswani import RealTokens, attention_dtype, encode, source_keys_and_values
from vaswani.models.int8_vaswani import kernel_problem


def test_real_tokens_are_picked_and_put_back():
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]])
    states = torch.randn(2, 3, 4)
    real = RealTokens(mask)
    rows = real.pick(states)
    assert torch.equal(rows, states[mask.bool()])
    assert torch.equal(real.put_back(rows), states * mask[..., None])
    whole = RealTokens(torch.ones(2, 3))
    assert torch.equal(whole.put_back(whole.pick(states)), states)


@pytest.mark.parametrize("is_padded", [False, True])
@torch.no_grad()
def test_it_gives_what_the_encoder_gives(is_padded, random_model, batch):
    model = random_model(activation_function="swish", layer_norm_eps=0.1)
    given = batch(model.config)
    mask = given["attention_mask"] if is_padded else torch.ones_like(given["attention_mask"])
    states = encode(model.model.encoder, given["input_ids"], mask)
    expected = model.model.encoder(given["input_ids"], mask).last_hidden_state
    torch.testing.assert_close(states[mask.bool()], expected[mask.bool()])
    assert not states[mask == 0].any()
    # the control: another mask gives other states
    mask[2, 3] = 0
    assert not torch.allclose(encode(model.model.encoder, given["input_ids"], mask)[2, 4], expected[2, 4])


@torch.no_grad()
def test_parts_of_a_batch_are_encoded_as_the_whole(random_model, batch, monkeypatch):
    model = random_model()
    given = batch(model.config)
    whole = encode(model.model.encoder, given["input_ids"], given["attention_mask"])
    monkeypatch.setattr(encoding_vaswani, "MAX_POSITIONS", 8)  # one sentence, four tokens of keys and values
    torch.testing.assert_close(encode(model.model.encoder, given["input_ids"], given["attention_mask"]), whole)
    pairs = source_keys_and_values(model.model.decoder, whole, given["attention_mask"], torch.float32)
    monkeypatch.undo()
    for parts, expected in zip(
        pairs, source_keys_and_values(model.model.decoder, whole, None, torch.float32), strict=True
    ):
        real = given["attention_mask"].bool()
        for part, other in zip((parts[0].mT, parts[1]), (expected[0].mT, expected[1]), strict=True):
            each, others = (heads.unflatten(0, (len(real), -1)).transpose(1, 2)[real] for heads in (part, other))
            torch.testing.assert_close(each, others)


@pytest.mark.parametrize(("has_bfloat16", "has_tiles"), [(True, False), (True, True), (False, False)])
def test_attention_is_computed_in_the_fastest_type_that_is_exact_enough(
    has_bfloat16, has_tiles, random_model, batch, monkeypatch
):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_bfloat16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has_tiles)
    fastest = torch.bfloat16 if has_bfloat16 and not has_tiles else torch.float32
    for exact in (torch.float32, torch.float64, torch.float16):
        for in_one_pass in (False, True):
            assert attention_dtype(random_model().to(exact), in_one_pass) == exact
    model = random_model().bfloat16()
    assert attention_dtype(model) == fastest
    assert attention_dtype(model, in_one_pass=True) == torch.bfloat16
    given = {name: batch(model.config)[name] for name in ("input_ids", "attention_mask")}
    for num_beams in (1, 2):  # whichever it is, the products stay in bfloat16
        assert model.generate(**given, num_beams=num_beams, max_new_tokens=1).shape == (4, 2)
    if kernel_problem() is None:
        assert attention_dtype(random_model().quantize()) == fastest


@torch.no_grad()
def test_keys_and_values_of_all_layers_are_those_of_each(random_model, batch):
    model = random_model()
    mask = batch(model.config)["attention_mask"]
    states = torch.randn(*mask.shape, model.config.d_model)
    real = mask.bool()
    pairs = source_keys_and_values(model.model.decoder, states, mask, torch.float32)
    for (keys, values), layer in zip(pairs, model.model.decoder.layers, strict=True):
        attention = layer.encoder_attn
        for computed, part in ((keys.mT, attention.k_proj), (values, attention.v_proj)):
            heads = computed.unflatten(0, (len(mask), -1)).transpose(1, 2).flatten(2)  # (B, S, H * d_k)
            torch.testing.assert_close(heads[real], part(states)[real])
            assert not heads[~real].any()


def test_generate_encodes_so(random_model, batch, monkeypatch):
    model, asked = random_model(), []
    given = {name: batch(model.config)[name] for name in ("input_ids", "attention_mask")}
    expected = model.generate(**given, num_beams=2, max_new_tokens=5)
    monkeypatch.setattr(modeling_vaswani, "encode", lambda *args: asked.append(1) or encode(*args))
    assert torch.equal(model.generate(**given, num_beams=2, max_new_tokens=5), expected)
    ids, mask = given.values()
    assert torch.equal(model.generate(ids, attention_mask=mask, num_beams=2, max_new_tokens=5), expected)
    assert len(asked) == 2
    slow = [model.model.encoder.layers[0].fc1.register_forward_hook(lambda *given: None)]
    assert torch.equal(model.generate(**given, num_beams=2, max_new_tokens=5), expected)
    slow.pop().remove()
    states = model.model.encoder(**given)
    assert torch.equal(model.generate(**given, encoder_outputs=states, num_beams=2, max_new_tokens=5), expected)
    stock = {"length_penalty_alpha": None, "output_attentions": True}  # transformers' own search
    model.generate(**given, num_beams=2, max_new_tokens=5, **stock)
    embedded = model.model.encoder.embed_tokens(given["input_ids"])
    model.generate(inputs_embeds=embedded, attention_mask=given["attention_mask"], num_beams=2, max_new_tokens=5)
    assert len(asked) == 2


def test_restricted_attention_is_left_to_the_encoder(random_model, batch):
    model = random_model(attention_restriction=3)
    given = batch(model.config)
    assert model.encode_source(given["input_ids"], given["attention_mask"]) is None
