"""Training without padding against the same model with padded batches, whose float64 gradients are the truth.

Triton's kernels need a GPU. What stands in for them here is PyTorch's.
"""

import copy

import numpy as np
import packed_operations
import pytest
import torch
from packed_operations import DEVICE, IN_INTERPRETER, needs_kernels
from torch import nn

from training.data.batch_plan import Side, collate
from training.data.packing import BLOCK, pack
from training.gpu import objective as objective_module
from training.gpu import operations
from training.gpu.objective import PackedObjective, why_not
from training.objective.loss import LabelSmoothedObjective


WIDTHS = {
    "d_model": 48, "encoder_ffn_dim": 64, "decoder_ffn_dim": 80, "head_dim": 16, "v_head_dim": 32,
    "encoder_attention_heads": 3, "decoder_attention_heads": 2,
}  # fmt: skip

PLACE = torch.device("cpu"), torch.bfloat16


@pytest.fixture
def on_a_cpu(monkeypatch):
    packed_operations.stand_in(monkeypatch)


@pytest.fixture
def sides():
    """Return the sources and targets of 40 pairs, of several blocks."""
    generator = np.random.default_rng(1)
    lengths = generator.integers(1, 20, (2, 40))
    return [Side(generator.integers(1, 20, each.sum()), each) for each in lengths]


def gradients(model, compute):
    """Return the sums of the loss, and all gradients by name."""
    model.zero_grad()
    sums = compute()
    (sums.loss / sums.tokens).backward()
    return sums, {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


@pytest.mark.smoke
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tie_word_embeddings": False},
        {"attention_bias": False},
        {"lm_head_bias": True},
        {"layer_norm_eps": 0.5},
        {"encoder_layers": 1, "decoder_layers": 3},
    ],
)
def test_loss_and_gradients_are_those_of_padded_batches(random_model, sides, on_a_cpu, settings):
    model = random_model(**(WIDTHS | settings)).train().double()
    pad = model.config.pad_token_id
    wanted_sums, wanted = gradients(model, lambda: LabelSmoothedObjective(model, 0.2)(*collate(*sides, pad)))
    objective = PackedObjective(model, 0.2)
    sums, found = gradients(model, lambda: objective(*pack(*sides, pad)))
    assert sums.tokens == wanted_sums.tokens
    torch.testing.assert_close(sums, wanted_sums, rtol=1e-9, atol=0)
    nothing = [wanted.pop(name) for name in list(wanted) if name.endswith("k_proj.bias")]
    assert all(gradient.abs().max() < 1e-12 for gradient in nothing)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-7, atol=1e-10, msg=name)


def test_a_model_in_training_drops_and_one_in_evaluation_does_not(random_model, sides, on_a_cpu):
    model = random_model(**WIDTHS, dropout=0.3, activation_dropout=0.2)
    objective = PackedObjective(model, 0.2)

    def losses():
        return [objective(*pack(*sides, model.config.pad_token_id)).loss.item() for _ in range(2)]

    one, other = losses()
    assert one == other
    objective.train()
    one, other = losses()
    assert one != other


def test_gradients_are_of_what_was_not_dropped(random_model, sides, on_a_cpu):
    """Along some direction, the loss rises as the gradient says, with the same random numbers."""
    model = random_model(**WIDTHS, dropout=0.3, activation_dropout=0.2).train().double()
    objective = PackedObjective(model, 0.2)
    batch = pack(*sides, model.config.pad_token_id)

    def loss() -> torch.Tensor:
        torch.manual_seed(5)
        return objective(*batch).loss

    model.zero_grad()
    loss().backward()
    weights = {name: weight for name, weight in model.named_parameters() if weight.grad is not None}
    for part in ("shared", "encoder.layers", "decoder.layers", "norm"):
        step = {name: torch.randn_like(weight) for name, weight in weights.items() if part in name}
        if part == "shared":
            step["model.shared.weight"][model.config.pad_token_id] = 0  # which is frozen
        slope = sum((step[name] * weights[name].grad).sum() for name in step)
        losses = []
        for sign in (1, -1):
            with torch.no_grad():
                for name, direction in step.items():
                    weights[name] += sign * 1e-6 * direction
                losses.append(loss())
                for name, direction in step.items():
                    weights[name] -= sign * 1e-6 * direction
        assert (losses[0] - losses[1]).item() / 2e-6 == pytest.approx(slope.item(), rel=1e-4)


def test_dropout_is_where_the_paper_has_it(random_model, sides, on_a_cpu, monkeypatch):
    dropped, norm = [], packed_operations.add_and_norm
    monkeypatch.setattr(objective_module, "dropout", lambda states, p, training: dropped.append(p) or states)
    monkeypatch.setattr(torch.nn.functional, "dropout", lambda states, p, **_: dropped.append(p) or states)
    monkeypatch.setattr(operations, "add_and_norm", lambda *given: dropped.append(given[-1]) or norm(*given))
    model = random_model(**WIDTHS, dropout=0.3, activation_dropout=0.2).train()
    PackedObjective(model, 0.2)(*pack(*sides, model.config.pad_token_id))
    encoder, decoder = [0.3, 0.2, 0.3], [0.3, 0.3, 0.2, 0.3]  # sublayers, and within the feed-forward network
    assert dropped == [0.3, *2 * encoder, 0.3, *2 * decoder]


def test_no_two_sublayers_drop_alike(random_model, sides, on_a_cpu, monkeypatch):
    seeds, norm = [], packed_operations.add_and_norm
    monkeypatch.setattr(operations, "add_and_norm", lambda *given: seeds.append(int(given[4])) or norm(*given))
    objective = PackedObjective(random_model(**WIDTHS).train(), 0.2)
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        objective(*pack(*sides, 22))
    count = len(seeds) // 3
    assert seeds[:count] == seeds[count : 2 * count]
    assert len(set(seeds)) == 2 * count == 2 * (2 * 2 + 2 * 3)


def test_products_take_the_weights_as_they_are_now_and_in_their_type(random_model, sides, on_a_cpu):
    model = random_model(**WIDTHS).eval()
    objective, other = PackedObjective(model, 0.2), PackedObjective(model, 0.2)
    batch = pack(*sides, model.config.pad_token_id)
    first = objective(*batch).loss.item()
    with torch.no_grad():
        for weight in model.parameters():
            weight *= 1.1
    assert objective(*batch).loss.item() == other(*batch).loss.item() != first
    with torch.autocast("cpu", torch.bfloat16):
        rounded = objective(*batch)
    assert rounded.loss.item() != other(*batch).loss.item()
    assert rounded.loss.item() == pytest.approx(other(*batch).loss.item(), rel=1e-2)
    assert {linear.weight.dtype for linear in objective.rounded.layers[model.model.encoder.layers[0]].values()} == {
        torch.bfloat16
    }
    model.double()
    assert objective(*batch).loss.dtype == torch.float64


def test_the_loss_takes_its_softmax_from_the_kernels(random_model, sides, on_a_cpu, monkeypatch):
    given = {}
    monkeypatch.setattr(objective_module, "fused_label_smoothed_sums", lambda *_, **named: given.update(named))
    PackedObjective(random_model(**WIDTHS), 0.2)(*pack(*sides, 22))
    assert given["normalize"] is operations.softmax_and_logsumexp_


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, None),
        ({"attention_restriction": 3}, "attention is restricted (attention_restriction=3)"),
        ({"attention_dropout": 0.1}, "the kernels for it have no attention_dropout, here 0.1"),
        ({"activation_function": "swish"}, "the kernels for it have no activation_function='swish', only 'relu'"),
        ({"position_embedding_type": "learned"}, "positions must be sinusoidal for it, and are learned"),
        ({"head_dim": 48}, "the kernels for it want heads of 16, 32, 64, ... columns, and one has 48"),
        ({"v_head_dim": 8}, "the kernels for it want heads of 16, 32, 64, ... columns, and one has 8"),
    ],
)
def test_it_says_why_a_models_sentences_are_padded(random_model, on_a_cpu, settings, reason):
    assert why_not(random_model(**(WIDTHS | settings)), *PLACE) == reason


def test_a_model_of_another_kind_is_padded():
    assert why_not(nn.Linear(1, 1), *PLACE) == "only the Transformer's need not be, and this is Linear"


def test_a_model_with_adapters_is_padded(random_model, on_a_cpu):
    model = random_model(**WIDTHS)
    model.model.decoder.layers[1].fc2 = nn.Sequential(model.model.decoder.layers[1].fc2)
    assert why_not(model, *PLACE) == "they are computed by weights alone, and model.decoder.layers.1.fc2 is Sequential"


def test_all_kernels_are_tried_as_a_layer_needs_them(random_model, on_a_cpu, monkeypatch):
    tried = {}

    def watched(name):
        kernel = getattr(packed_operations, name)
        return lambda *given, **named: tried.update({name: given}) or kernel(*given, **named)

    for name in packed_operations.NAMES:
        monkeypatch.setattr(operations, name, watched(name))
    assert why_not(random_model(**WIDTHS, dropout=0.3, layer_norm_eps=0.5), *PLACE) is None
    assert len(tried) == 6
    projected, seen, *how = tried["attend"]
    rows = 2 * BLOCK
    assert [part.shape for part in projected] == [(rows, 48), (rows, 48), (rows, 96)]
    assert [each.tolist() for each in seen] == [[end] * rows for end in (0, rows)] * 2
    assert how == [3, 0.25]
    states, _, gain, *_, eps, p = tried["add_and_norm"]
    assert (states.shape, states.dtype, gain.dtype, eps, p) == ((rows, 48), torch.bfloat16, torch.float32, 0.5, 0.3)


@pytest.mark.skipif(IN_INTERPRETER, reason="Triton's interpreter runs them here")
def test_where_they_do_not_work_sentences_are_padded(random_model):
    """On a CPU there are none."""
    reason = why_not(random_model(**WIDTHS), *PLACE)
    assert reason.startswith("Triton's kernels do not work here (")
    assert "\n" not in reason


@pytest.mark.gpu
@needs_kernels
def test_so_are_they_with_the_kernels(random_model, sides):
    model = random_model(**WIDTHS).train()
    pad = model.config.pad_token_id
    truth = copy.deepcopy(model).double()
    _, wanted = gradients(truth, lambda: LabelSmoothedObjective(truth, 0.2)(*collate(*sides, pad)))
    objective = PackedObjective(model.to(DEVICE), 0.2)
    batch = [tensor.to(DEVICE) for tensor in pack(*sides, pad)]

    def compute():
        with torch.autocast(DEVICE, torch.bfloat16, enabled=not IN_INTERPRETER):  # it has no bfloat16
            return objective(*batch)

    _, found = gradients(model, compute)
    assert found.keys() == {name for name in wanted if not name.endswith("k_proj.bias")}
    error = sum((found[name].cpu().double() - wanted[name]).square().sum() for name in found)
    tolerance = 1e-5 if IN_INTERPRETER else 0.03
    assert error < tolerance**2 * sum(gradient.square().sum() for gradient in wanted.values())
    assert model.lm_head.weight.grad.any()
