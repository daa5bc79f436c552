import pytest
import torch

from vaswani.models import modeling_vaswani
from vaswani.models.encoding_vaswani import RealTokens, encode, source_keys_and_values


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
    model = random_model()
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
def test_keys_and_values_of_all_layers_are_those_of_each(random_model, batch):
    model = random_model()
    mask = batch(model.config)["attention_mask"]
    states = torch.randn(*mask.shape, model.config.d_model)
    real = mask.bool()
    pairs = source_keys_and_values(model.model.decoder, states, mask)
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
    model.generate(**given, num_beams=2, max_new_tokens=5, length_penalty_alpha=None)  # transformers' own search
    embedded = model.model.encoder.embed_tokens(given["input_ids"])
    model.generate(inputs_embeds=embedded, attention_mask=given["attention_mask"], num_beams=2, max_new_tokens=5)
    assert len(asked) == 2


def test_restricted_attention_is_left_to_the_encoder(random_model, batch):
    model = random_model(attention_restriction=3)
    given = batch(model.config)
    assert model.encode_source(given["input_ids"], given["attention_mask"]) is None
