"""The recurrent model equals its equations in float64 NumPy, its gradients their finite differences."""

import itertools

import numpy as np
import pytest
import recurrent_equations
import torch

from vaswani import RecurrentConfig, RecurrentForConditionalGeneration
from vaswani.models import modeling_recurrent


ATTENTIONS = ("none", "dot", "scaled_dot", "additive")
CASES = [
    {"rnn_type": rnn_type, "bidirectional": bidirectional, "attention": attention, "tie_word_embeddings": tied}
    for (rnn_type, bidirectional), attention, tied in zip(
        itertools.cycle(itertools.product(("lstm", "gru"), (False, True))),
        ATTENTIONS * 2,
        (False, True) * 4,
        strict=False,
    )
]


def make(**overrides) -> RecurrentForConditionalGeneration:
    """Return a small model in float64 whose weights are large enough to tell one equation from another."""
    config = RecurrentConfig(**{"vocab_size": 11, "d_model": 6, "num_layers": 2, "dropout": 0.0} | overrides)
    model = RecurrentForConditionalGeneration(config).double().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(0, 0.7)
            if "embed_tokens" in name and not config.tie_word_embeddings:
                weight[config.pad_token_id] = 0
    return model


def weights_of(model: RecurrentForConditionalGeneration) -> dict[str, np.ndarray]:
    return {name: weight.detach().numpy().copy() for name, weight in model.state_dict().items()}


def pairs_of(batch: dict[str, torch.Tensor]) -> list[tuple[list[int], list[int]]]:
    """Return source and target of each sentence, without their padding."""
    masks = batch["attention_mask"].bool(), batch["labels"] != -100
    sides = zip(batch["input_ids"], batch["labels"], *masks, strict=True)
    return [(source[real].tolist(), target[known].tolist()) for source, target, real, known in sides]


def loss_of(model: RecurrentForConditionalGeneration, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    logits = model(**batch).logits  # transformers' own loss is in fp32
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def largest_error(model: RecurrentForConditionalGeneration, batch: dict[str, torch.Tensor]) -> float:
    """Return by how much log-probabilities of real tokens differ from the equations'; sources are padded anyhow."""
    ours = model(**batch).logits.log_softmax(-1).detach().numpy()
    expected = [
        recurrent_equations.log_probabilities(*pair, weights_of(model), model.config) for pair in pairs_of(batch)
    ]
    return max(np.abs(row[: len(rows)] - rows).max() for row, rows in zip(ours, expected, strict=True))


@pytest.mark.smoke
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_probabilities_equal_the_equations(case, batch):
    model = make(**case)
    assert largest_error(model, batch(model.config)) < 1e-12


@pytest.mark.parametrize("case", CASES[:4], ids=lambda case: "-".join(map(str, case.values())))
def test_gradients_equal_finite_differences_of_the_equations(case, batch):
    model = make(**case)
    inputs = batch(model.config, 4, 4)
    loss_of(model, inputs).backward()
    weights, pairs = weights_of(model), pairs_of(inputs)
    generator, step = np.random.default_rng(0), 1e-5
    for name, weight in model.named_parameters():
        same = [other for other, tensor in model.state_dict().items() if tensor.data_ptr() == weight.data_ptr()]
        for flat in generator.permutation(weight.numel())[:3]:
            index = np.unravel_index(flat, weight.shape)
            if "embed_tokens" in name and index[0] == model.config.pad_token_id:
                continue  # the softmax's row for <pad>, where the two are one: its gradient as an embedding is none
            losses = []
            for sign in (1, -1):
                moved = {other: weights[other].copy() for other in same}
                for array in moved.values():
                    array[index] += sign * step
                losses.append(recurrent_equations.mean_loss(pairs, weights | moved, model.config))
            difference = (losses[0] - losses[1]) / (2 * step)
            assert weight.grad[tuple(map(int, index))].item() == pytest.approx(difference, abs=1e-7), name


def swap_gates(model):
    for name, weight in model.named_parameters():
        if "rnn" in name:
            weight.data = weight.data.roll(len(weight) // 4, 0)


def read_padding(model):
    model.model.encoder.forward = lambda attention_mask=None, forward=model.model.encoder.forward, **given: forward(
        **given
    )


def forget_the_bridge(model):
    model.model.from_encoder = lambda outputs, whole=model.model.from_encoder: (
        whole(outputs) | {"encoder_last_states": torch.zeros_like(outputs.last_states)}
    )


@pytest.mark.parametrize("break_it", [swap_gates, read_padding, forget_the_bridge])
def test_a_wrong_model_would_be_noticed(break_it, batch):
    model = make(attention="dot")
    expected = make(attention="dot")
    expected.load_state_dict(model.state_dict())
    break_it(model)
    inputs = batch(model.config)
    ours, theirs = (one(**inputs).logits for one in (model, expected))
    assert (ours - theirs).abs().max() > 1e-2


def test_a_sum_of_states_without_a_softmax_would_be_noticed(batch, monkeypatch):
    monkeypatch.setattr(modeling_recurrent, "masked", lambda scores, mask: scores * 0)
    model = make(attention="additive")
    assert largest_error(model, batch(model.config)) > 1e-2


@pytest.mark.parametrize("attention", ATTENTIONS[1:])
def test_weights_sum_to_one_over_real_tokens_only(attention, batch):
    model = make(attention=attention)
    model.set_attn_implementation("eager")
    inputs = batch(model.config)
    (weights,) = model(**inputs, output_attentions=True).cross_attentions
    assert weights.shape == (4, 1, 6, 7)
    assert torch.allclose(weights.sum(-1), torch.ones(()).double())
    assert (weights.transpose(1, 3)[inputs["attention_mask"] == 0] == 0).all()


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_step_by_step_equals_teacher_forcing(attention, batch):
    model = make(attention=attention, rnn_type="gru" if attention == "dot" else "lstm")
    inputs = batch(model.config)
    ids = model.prepare_decoder_input_ids_from_labels(inputs.pop("labels"))
    whole = model(**inputs, decoder_input_ids=ids, use_cache=False).logits
    encoded, cache, parts = model.get_encoder()(**inputs), None, []
    for columns in (ids[:, :2], ids[:, 2:3], ids[:, 3:]):
        given = {"attention_mask": inputs["attention_mask"], "encoder_outputs": encoded, "past_key_values": cache}
        output = model(**given, decoder_input_ids=columns, use_cache=True)
        cache = output.past_key_values
        parts.append(output.logits)
    assert cache.get_seq_length() == 6
    assert torch.allclose(torch.cat(parts, dim=1), whole, atol=1e-12)


@pytest.mark.parametrize("attention", ["none", "additive"])
@pytest.mark.parametrize(
    "search", [{"num_beams": 1}, {"num_beams": 4}, {"num_beams": 3, "length_penalty_alpha": None}]
)
def test_a_search_finds_the_same_with_states_and_without_alone_and_in_any_company(attention, search, batch):
    model = make(attention=attention, tie_word_embeddings=True)
    inputs = {name: tensor for name, tensor in batch(model.config).items() if name != "labels"}
    limit = {"max_new_tokens": 9}
    found = model.generate(**inputs, **search, **limit)
    assert torch.equal(found, model.generate(**inputs, **search, **limit, use_cache=False))
    for row in range(4):
        real = inputs["attention_mask"][row].bool()
        alone = model.generate(inputs["input_ids"][row : row + 1, real], **search, **limit)[0]
        assert found[row, : len(alone)].tolist() == alone.tolist()
        assert (found[row, len(alone) :] == model.config.pad_token_id).all()
