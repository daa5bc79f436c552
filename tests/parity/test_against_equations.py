"""Logits and every gradient equal the float64 NumPy reference, which itself equals its finite differences."""

import equations
import numpy as np
import pytest
import torch

from vaswani.models import modeling_vaswani, translator_vaswani
from vaswani.models.modeling_vaswani import VaswaniAttention, VaswaniStack


# Relative to the largest entry of each tensor. A result passes through some hundred operations in a row, each of which
# may round off 6e-8 in fp32 and 1e-16 in float64: at worst 1e-5 and 2e-14 (measured: 4e-6 and 9e-15).
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-13}

CONFIGS = {
    "base": {},
    "odd_widths": {"head_dim": 3, "v_head_dim": 5, "encoder_attention_heads": 3},
    "no_biases": {"attention_bias": False},
    "learned_positions": {"position_embedding_type": "learned", "max_position_embeddings": 9},
    "uneven_stacks": {"encoder_layers": 3, "decoder_layers": 1, "encoder_attention_heads": 4, "encoder_ffn_dim": 24},
    "untied": {"tie_word_embeddings": False},
    "restricted to 3": {"attention_restriction": 3},
    "restricted to 4": {"attention_restriction": 4},
}


def reference(model, batch):
    weights = {name: parameter.detach().double().numpy() for name, parameter in model.named_parameters()}
    arrays = {name: tensor.numpy() for name, tensor in batch.items()}
    return equations.forward_and_backward(weights, model.config, **arrays)


def largest_error(model, batch, expected) -> float:
    """Run the model forward and backward; return the worst relative error of its logits, loss and gradients."""
    expected_logits, expected_loss, expected_gradients = expected
    output = model(**batch)
    loss = output.loss
    if output.logits.dtype == torch.float64:  # transformers' loss is in fp32 always
        loss = torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), batch["labels"].flatten())
    loss.backward()
    gradients = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in model.named_parameters()
    }
    assert gradients.keys() == expected_gradients.keys()
    pairs = [(gradients[name].numpy(), expected_gradients[name]) for name in gradients]
    # The gradient by a bias of keys is zero (softmax ignores what all scores have in common), so it needs a floor.
    floor = 1e-2 * max(np.abs(gradient).max() for gradient in expected_gradients.values())
    errors = [np.abs(ours - theirs).max() / max(np.abs(theirs).max(), floor) for ours, theirs in pairs]
    errors.append(np.abs(output.logits.detach().numpy() - expected_logits).max() / np.abs(expected_logits).max())
    return max(*errors, abs(loss.item() - expected_loss) / expected_loss)


@pytest.mark.smoke
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("overrides", CONFIGS.values(), ids=CONFIGS)
def test_logits_and_all_gradients_equal_the_equations(overrides, dtype, random_model, batch):
    model = random_model(**overrides)
    inputs = batch(model.config)
    error = largest_error(model.to(dtype), inputs, reference(model, inputs))
    print(f"largest relative error: {error:.1e}")
    assert error < TOLERANCE[dtype]


@pytest.mark.smoke
def test_a_source_of_3000_tokens_equals_the_equations(random_model):
    model = random_model(d_model=32, encoder_layers=1, decoder_layers=1)
    inputs = {"input_ids": torch.randint(1, 22, (1, 3000)), "labels": torch.randint(1, 22, (1, 3))}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    assert largest_error(model, inputs, reference(model, inputs)) < TOLERANCE[torch.float32]


def test_the_equations_gradients_equal_finite_differences(random_model, batch):
    sizes = {"d_model": 4, "vocab_size": 9, "encoder_layers": 1, "decoder_layers": 2, "max_position_embeddings": 5}
    sizes |= {"encoder_ffn_dim": 3, "decoder_ffn_dim": 3, "v_head_dim": 1, "position_embedding_type": "learned"}
    model = random_model(**sizes)
    inputs = {name: tensor[:3].numpy() for name, tensor in batch(model.config, 5, 4).items()}
    weights = {name: parameter.detach().double().numpy() for name, parameter in model.named_parameters()}
    weights["model.shared.weight"][-1] = 1.0  # <pad> embeds as zero all the same
    _, _, gradients = equations.forward_and_backward(weights, model.config, **inputs)

    def loss_with(name: str, index: tuple[int, ...], step: float) -> float:
        moved = weights[name].copy()
        moved[index] += step
        return equations.forward_and_backward(weights | {name: moved}, model.config, **inputs)[1]

    generator, step = np.random.default_rng(0), 1e-5
    for name, gradient in gradients.items():
        # A sample of the entries, as each costs two passes.
        flat = generator.permutation(gradient.size)[:6]
        for index in zip(*np.unravel_index(flat, gradient.shape), strict=True):
            difference = (loss_with(name, index, step) - loss_with(name, index, -step)) / (2 * step)
            # Off by step^2 / 6 = 2e-11 times a third derivative of some hundreds, and by rounding, 1e-16 / step.
            assert abs(difference - gradient[index]) < 1e-7, f"{name}{index}"


def omit_scaling(model, monkeypatch):
    for module in model.modules():
        if isinstance(module, VaswaniAttention):
            module.scaling = 1.0


def put_sines_and_cosines_in_halves(model, monkeypatch):
    interleaved = modeling_vaswani.sinusoids

    def halves(*arguments):
        table = interleaved(*arguments)
        return torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)

    monkeypatch.setattr(modeling_vaswani, "sinusoids", halves)


def drop_mask_of(cross_attention):
    def control(model, monkeypatch):
        original = modeling_vaswani.create_bidirectional_mask

        def without(*arguments, **kwargs):
            dropped = ("encoder_hidden_states" in kwargs) == cross_attention
            return None if dropped else original(*arguments, **kwargs)

        monkeypatch.setattr(modeling_vaswani, "create_bidirectional_mask", without)

    return control


def drop_causal_mask(model, monkeypatch):
    monkeypatch.setattr(modeling_vaswani, "create_causal_mask", lambda **kwargs: None)
    for layer in model.model.decoder.layers:
        layer.self_attn.is_causal = False


def omit_embedding_scale(model, monkeypatch):
    embed = VaswaniStack.embed
    monkeypatch.setattr(VaswaniStack, "embed", lambda self, *ids: embed(self, *ids) / self.config.d_model**0.5)


def look_up_padding(model, monkeypatch):
    # The row of <pad> is zero, so only its gradient can tell.
    scaled = model.config.d_model**0.5
    monkeypatch.setattr(VaswaniStack, "embed", lambda self, ids, _: self.embed_tokens.weight[ids] * scaled)


def start_from_end_of_sentence(model, monkeypatch):
    shift = translator_vaswani.shift_tokens_right
    monkeypatch.setattr(translator_vaswani, "shift_tokens_right", lambda labels, pad, start: shift(labels, pad, 0))


def use_other_epsilon(model, monkeypatch):
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-6


CONTROLS = {
    "no scaling by sqrt(d_k)": (omit_scaling, 1e-2),
    "halves": (put_sines_and_cosines_in_halves, 1e-2),
    "no source mask": (drop_mask_of(cross_attention=False), 1e-2),
    "no cross-attention mask": (drop_mask_of(cross_attention=True), 1e-2),
    "no causal mask": (drop_causal_mask, 1e-2),
    "no scaling by sqrt(d_model)": (omit_embedding_scale, 1e-2),
    "<pad> learns from lookups": (look_up_padding, 1e-2),
    "starts from </s>": (start_from_end_of_sentence, 1e-2),
    # Only float64 can tell this one.
    "epsilon 1e-6": (use_other_epsilon, 1e-7),
}


@pytest.mark.parametrize(("mistake", "least_error"), CONTROLS.values(), ids=CONTROLS)
def test_a_wrong_model_is_found_out(mistake, least_error, random_model, batch, monkeypatch):
    model = random_model().double()
    inputs = batch(model.config)
    expected = reference(model, inputs)
    mistake(model, monkeypatch)
    error = largest_error(model, inputs, expected)
    print(f"largest relative error: {error:.1e}")
    assert error > least_error


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize("shift", [1, -1])
def test_a_window_that_is_off_by_one_is_found_out(stack, shift, random_model, batch):
    model = random_model(attention_restriction=3).double()
    inputs = batch(model.config)
    expected = reference(model, inputs)
    for layer in getattr(model.model, stack).layers:
        layer.self_attn.restriction += shift
    assert largest_error(model, inputs, expected) > 1e-2
