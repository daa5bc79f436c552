"""ConvS2S equals its float64 NumPy reference: logits, loss and, by finite differences, gradients."""

import convolutional_equations
import numpy as np
import pytest
import torch
from small_convolutional import small_model
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from vaswani.models import modeling_convolutional
from vaswani.models.modeling_convolutional import (
    ConvolutionalAttention,
    ConvolutionalDecoderLayer,
    ConvolutionalEncoder,
    ConvolutionalLinear,
)


# Relative to the largest logit, through some fifty operations of which each may round off 6e-8 or 1e-16.
TOLERANCE = {torch.float32: 5e-6, torch.float64: 1e-14}


def reference(model, inputs) -> tuple[np.ndarray, float]:
    weights = {name: parameter.detach().double().numpy() for name, parameter in model.named_parameters()}
    return convolutional_equations.forward(weights, model.config, **{k: v.numpy() for k, v in inputs.items()})


def largest_error(model, inputs, expected) -> float:
    """Return the worse of the relative errors of logits and loss."""
    expected_logits, expected_loss = expected
    logits = model(**inputs).logits.detach()
    # transformers' loss is in fp32 always.
    loss = cross_entropy(logits.flatten(0, 1), inputs["labels"].flatten()).item()
    error = np.abs(logits.numpy() - expected_logits).max() / np.abs(expected_logits).max()
    return max(error, abs(loss - expected_loss) / expected_loss)


@pytest.mark.smoke
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("tied", [True, False])
def test_logits_and_loss_equal_the_equations(tied, dtype, implementation, batch):
    model = small_model(tie_word_embeddings=tied)
    model.set_attn_implementation(implementation)
    inputs = batch(model.config)
    expected = reference(model, inputs)
    error = largest_error(model.to(dtype), inputs, expected)
    print(f"largest relative error: {error:.1e}")
    assert error < TOLERANCE[dtype]
    assert model(**inputs).loss.item() == pytest.approx(expected[1], rel=1e-5)


def test_gradients_equal_finite_differences_of_the_equations(batch):
    sizes = {"d_model": 4, "encoder_channels": [4, 5], "encoder_kernel_sizes": [3, 1]}
    sizes |= {"decoder_channels": [3, 4], "decoder_kernel_sizes": [3, 5], "vocab_size": 9}
    model = small_model(tie_word_embeddings=True, **sizes).double()  # eval: gradients to the encoder are not scaled
    inputs = {name: tensor[[0, 2]] for name, tensor in batch(model.config, 6, 4).items()}
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    weights = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    cross_entropy(model(**inputs).logits.flatten(0, 1), inputs["labels"].flatten()).backward()

    def loss_with(name: str, index: tuple[int, ...], step: float) -> float:
        moved = weights[name].copy()
        moved[index] += step
        return convolutional_equations.forward(weights | {name: moved}, model.config, **arrays)[1]

    generator, step, compared = np.random.default_rng(0), 1e-5, 0
    for name, parameter in model.named_parameters():
        gradient = parameter.grad.numpy()
        candidates = np.flatnonzero(gradient)  # the rows of absent words have none
        for flat in generator.permutation(candidates)[:2]:
            index = np.unravel_index(flat, gradient.shape)
            difference = (loss_with(name, index, step) - loss_with(name, index, -step)) / (2 * step)
            assert abs(difference - gradient[index]) < 1e-8, f"{name}{index}"
            compared += abs(gradient[index]) > 1e-5
    assert compared > 80


def test_in_training_the_encoder_gets_a_sixth_of_the_gradient_and_its_embeddings_more(batch):
    model = small_model().double()  # of three decoder layers: 1 / (2 * 3)
    inputs = batch(model.config)
    found = {}
    for training in (False, True):
        model.train(training)
        logits = model(**inputs).logits
        cross_entropy(logits.flatten(0, 1), inputs["labels"].flatten()).backward()
        found[training] = logits, {name: parameter.grad for name, parameter in model.named_parameters()}
        model.zero_grad()
    assert_close(found[True][0], found[False][0], rtol=0, atol=0)
    for name, gradient in found[False][1].items():
        if "encoder.embed" in name:
            assert not torch.allclose(found[True][1][name], gradient / 6, rtol=0.05, atol=0)
            assert not torch.allclose(found[True][1][name], gradient, rtol=0.05, atol=0)
        else:
            factor = 1 / 6 if name.startswith("model.encoder") else 1.0
            assert_close(found[True][1][name], gradient * factor, msg=name)


def leave_out_sqrt_half(monkeypatch):
    monkeypatch.setattr(modeling_convolutional, "SQRT_HALF", 1.0)


def look_one_position_ahead(monkeypatch):
    with_past = ConvolutionalDecoderLayer._with_past

    def shifted(self, states, past_key_values):
        extended = with_past(self, states, past_key_values)
        return extended if self.kernel_size == 1 else torch.nn.functional.pad(extended, (0, 0, 0, 1))[:, 1:]

    monkeypatch.setattr(ConvolutionalDecoderLayer, "_with_past", shifted)


def swap_gate_and_content(monkeypatch):
    halves = modeling_convolutional.glu
    monkeypatch.setattr(modeling_convolutional, "glu", lambda x, dim: halves(x.roll(x.shape[dim] // 2, dim), dim))


def reverse_windows(monkeypatch):
    windows = modeling_convolutional.windows
    monkeypatch.setattr(modeling_convolutional, "windows", lambda x, k: windows(x.flip(1), k).flip(1))


def attend_to_padding(monkeypatch):
    monkeypatch.setattr(modeling_convolutional, "create_bidirectional_mask", lambda **kwargs: None)


def count_padding(monkeypatch):
    lengths = modeling_convolutional.source_lengths
    monkeypatch.setattr(modeling_convolutional, "source_lengths", lambda states, mask: lengths(states, None))


def count_positions_of_padding(monkeypatch):
    embed = ConvolutionalEncoder.embed_with_positions
    monkeypatch.setattr(ConvolutionalEncoder, "embed_with_positions", lambda self, e, mask: embed(self, e, None))


def scale_scores(monkeypatch):
    forward = ConvolutionalAttention.forward
    monkeypatch.setattr(
        ConvolutionalAttention, "forward", lambda self, h, g, keys, *rest, **kw: forward(self, h, g, keys / 4, *rest)
    )


def normalize_nothing(monkeypatch):
    monkeypatch.setattr(
        ConvolutionalLinear,
        "forward",
        lambda self, x: torch.nn.functional.linear(x, self.direction * self.gain[:, None], self.bias),
    )


MISTAKES = (
    leave_out_sqrt_half,
    look_one_position_ahead,
    swap_gate_and_content,
    reverse_windows,
    attend_to_padding,
    count_padding,
    count_positions_of_padding,
    scale_scores,
    normalize_nothing,
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_wrong_model_is_found_out(mistake, batch, monkeypatch):
    model = small_model().double()
    inputs = batch(model.config)
    expected = reference(model, inputs)
    mistake(monkeypatch)
    error = largest_error(model, inputs, expected)
    print(f"largest relative error: {error:.1e}")
    assert error > 1e-2


def test_an_encoder_that_convolves_over_padding_is_found_out(batch):
    model = small_model().double()
    inputs = batch(model.config)
    expected = reference(model, inputs)
    for layer in model.model.encoder.layers:
        forward = layer.forward
        layer.forward = lambda states, is_padding, forward=forward: forward(states, None)
    assert largest_error(model, inputs, expected) > 1e-2
