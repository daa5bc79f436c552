"""One state dict, no mapping table: transformers' Marian with our positions computes the same as we do."""

import pytest
import torch
from marian_twin import copy_positions, marian_like


pytestmark = pytest.mark.smoke
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
# Both run the same operations on the same numbers; only the order of some additions might differ (measured: 0).
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(params=[{}, {"encoder_layers": 1, "encoder_attention_heads": 4, "decoder_ffn_dim": 48}])
def ours(request, random_model):
    return random_model(max_position_embeddings=40, **request.param)


@pytest.fixture
def marian(ours):
    """Marian with our weights, but still with its own positions."""
    model = marian_like(ours.config)
    loaded = model.load_state_dict(ours.state_dict(), strict=False)
    assert sorted(loaded.missing_keys) == sorted(["final_logits_bias", *POSITIONS])
    assert not loaded.unexpected_keys
    return model


def test_logits_loss_and_gradients_equal_marians(ours, marian, batch):
    copy_positions(marian)
    inputs = batch(ours.config)
    outputs = [model(**inputs) for model in (ours, marian)]
    torch.testing.assert_close(outputs[0].logits, outputs[1].logits, **TOLERANCE)
    torch.testing.assert_close(outputs[0].loss, outputs[1].loss, **TOLERANCE)
    for output in outputs:
        output.loss.backward()
    gradients, expected = (
        {name: weight.grad for name, weight in model.named_parameters() if name not in POSITIONS}
        for model in (ours, marian)
    )
    torch.testing.assert_close(gradients, expected, **TOLERANCE)


def test_bfloat16_is_no_worse_than_marians(ours, marian, batch):
    copy_positions(marian)
    inputs = batch(ours.config)
    exact = ours(**inputs).logits
    errors = [(model.bfloat16()(**inputs).logits - exact).abs().mean() for model in (ours, marian)]
    assert 0 < errors[0] < 3 * errors[1]


def test_greedy_translations_equal_marians(ours, marian, batch):
    copy_positions(marian)
    inputs = batch(ours.config)
    del inputs["labels"]
    settings = {
        "do_sample": False,
        "num_beams": 1,
        "max_new_tokens": 20,
        "suppress_tokens": [ours.config.pad_token_id],
    }
    settings["no_repeat_ngram_size"] = 1  # random models would repeat one token for ever
    translations = ours.generate(**inputs, **settings)
    torch.testing.assert_close(translations, marian.generate(**inputs, **settings))


def test_marians_weights_load_into_ours(random_model, batch):
    ours = random_model(max_position_embeddings=40)
    marian = marian_like(ours.config)
    copy_positions(marian)
    loaded = ours.load_state_dict(marian.state_dict(), strict=False)
    assert not loaded.missing_keys
    assert sorted(loaded.unexpected_keys) == sorted(["final_logits_bias", *POSITIONS])
    inputs = batch(ours.config)
    torch.testing.assert_close(ours(**inputs).logits, marian(**inputs).logits, **TOLERANCE)


def test_marians_own_positions_are_found_out(ours, marian, batch):
    inputs = batch(ours.config)
    difference = (ours(**inputs).logits - marian(**inputs).logits).abs().max()
    assert difference > 1e4 * TOLERANCE["atol"]
