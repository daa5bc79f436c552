import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from vaswani import VaswaniForConditionalGeneration
from vaswani.models import modeling_vaswani
from vaswani.models.modeling_vaswani import sinusoids
from vaswani.models.translator_vaswani import shift_tokens_right


def test_sines_and_cosines_alternate():
    [row] = sinusoids(torch.tensor([3]), 4).tolist()
    assert row == pytest.approx([math.sin(3), math.cos(3), math.sin(0.03), math.cos(0.03)], abs=1e-12)


def test_dropout_stands_where_section_5_4_puts_it(random_model, batch, monkeypatch):
    model = random_model(
        encoder_layers=1, decoder_layers=1, dropout=0.1, activation_dropout=0.2, attention_dropout=0.3
    )
    model.set_attn_implementation("eager")
    model.train()
    inputs = batch(model.config)
    known, calls = [], []
    for name, module in model.named_modules():
        kind = name.rpartition(".")[2]
        if kind in ("out_proj", "fc2"):
            module.register_forward_hook(lambda module, given, output, kind=kind: known.append((kind, output)))
        elif kind == "fc1":
            module.register_forward_hook(lambda module, given, output: known.append(("relu", output.relu())))
        elif kind in ("encoder", "decoder"):
            ids = inputs["input_ids"] if kind == "encoder" else shift_tokens_right(inputs["labels"], 22, 22)
            positions = sinusoids(torch.arange(ids.shape[1]), 16).float()
            known.append((kind, module.embed(ids, None) + positions))

    def noted(states, p, training):
        assert training
        calls.append((next((name for name, tensor in known if torch.equal(states, tensor)), "weights"), p))
        return states

    monkeypatch.setattr(modeling_vaswani, "dropout", noted)
    monkeypatch.setattr(nn.functional, "dropout", noted)
    model(**inputs)
    attention, feed_forward = [("weights", 0.3), ("out_proj", 0.1)], [("relu", 0.2), ("fc2", 0.1)]
    encoder = [("encoder", 0.1), *attention, *feed_forward]
    decoder = [("decoder", 0.1), *attention, *attention, *feed_forward]
    assert calls == encoder + decoder


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_nothing_is_dropped_at_inference(implementation, random_model, batch):
    model = random_model(dropout=0.9, activation_dropout=0.9, attention_dropout=0.9)
    model.set_attn_implementation(implementation)
    plain = random_model()
    plain.load_state_dict(model.state_dict())
    inputs = batch(model.config)
    assert_close(model(**inputs).logits, plain(**inputs).logits, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(model.train()(**inputs).logits, plain(**inputs).logits, atol=1e-2)


# d_k, d_v, h and d_model are all different, and matrices are large enough for their deviations to be known.
WIDTHS = {"d_model": 96, "decoder_attention_heads": 5, "encoder_attention_heads": 7, "head_dim": 24, "v_head_dim": 20}
LEARNED = {"position_embedding_type": "learned", "max_position_embeddings": 200, "tie_word_embeddings": False}


def fan_out(name: str, weight: torch.Tensor, heads: int) -> int:
    """Return the columns of the matrix that a weight was a part of in the original code."""
    keys_and_values = heads * (24 + 20)
    if is_query_key_or_value(name) and "self_attn" in name:
        return keys_and_values + heads * 24
    return keys_and_values if "k_proj" in name or "v_proj" in name else len(weight)


def is_query_key_or_value(name: str) -> bool:
    return any(part in name for part in ("q_proj", "k_proj", "v_proj"))


@pytest.fixture
def fresh_weights(tiny_config) -> dict[str, torch.Tensor]:
    config = tiny_config(vocab_size=500, encoder_ffn_dim=130, decoder_ffn_dim=130, **WIDTHS, **LEARNED)
    return dict(VaswaniForConditionalGeneration(config).named_parameters())


def check_glorot(name: str, weight: torch.Tensor) -> None:
    bound = math.sqrt(6 / (weight.shape[1] + fan_out(name, weight, 7 if "encoder.layers" in name else 5)))
    assert 0.99 * bound < weight.abs().max() <= bound, name
    assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.03), name


def check_normal(name: str, weight: torch.Tensor) -> None:
    assert weight.std().item() == pytest.approx(96**-0.5, rel=0.03), name
    assert weight.abs().max() > 3 * 96**-0.5, f"{name} is not normal"


def test_weights_are_initialized_as_the_table_says(fresh_weights):
    for name, weight in fresh_weights.items():
        if weight.dim() == 1:
            assert (weight == float(name.endswith("norm.weight"))).all(), name
        elif "embed" in name or "shared" in name:
            check_normal(name, weight)
        elif "encoder_attn.q_proj" in name or not (is_query_key_or_value(name) or "lm_head" in name):
            check_glorot(name, weight)
    assert not fresh_weights["model.shared.weight"][499].any()


# transformers calls `_init_weights` for no module of custom code that has no weights of its own, such as a layer.
NEVER_CALLED = pytest.mark.xfail(strict=True, reason="_initialize_weights passes over modules without own weights")


def check_projections(weights: dict[str, torch.Tensor]) -> None:
    names = [name for name, weight in weights.items() if weight.dim() == 2 and is_query_key_or_value(name)]
    assert len(names) == 18
    for name in names:
        check_glorot(name, weights[name])


@NEVER_CALLED
def test_projections_that_were_one_matrix_are_initialized_as_one(fresh_weights):
    check_projections(fresh_weights)


def test_whoever_calls_it_for_every_module_gets_the_whole_table(tiny_config):
    config = tiny_config(vocab_size=500, encoder_ffn_dim=130, decoder_ffn_dim=130, **WIDTHS, **LEARNED)
    model = VaswaniForConditionalGeneration(config)
    for weight in model.parameters():
        weight._is_hf_initialized = False
    for module in reversed(list(model.modules())):  # parts before the whole
        model._init_weights(module)
    weights = dict(model.named_parameters())
    check_projections(weights)
    check_normal("lm_head", weights["lm_head.weight"])


@NEVER_CALLED
def test_a_softmax_matrix_of_its_own_is_initialized_as_embeddings_are(fresh_weights):
    check_normal("lm_head", fresh_weights["lm_head.weight"])
