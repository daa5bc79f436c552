"""Training without padding against the same model with padded batches, whose float64 gradients are the truth.

Triton's kernels need a GPU. What stands in for them here is PyTorch's.
"""

import copy

import numpy as np
import packed_operations
import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from training.data.batch_plan import Side, collate
from training.data.packing import BLOCK, pack
from training.gpu import objective as objective_module
from training.gpu.objective import PackedObjective, why_not
from training.objective.loss import LabelSmoothedObjective
from vaswani.models import modeling_vaswani


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
        {"activation_function": "swish"},
    ],
)
def test_loss_and_gradients_are_those_of_padded_batches(random_model, sides, on_a_cpu, settings):
    model = random_model(**(WIDTHS | settings)).train().double()
    pad = model.config.pad_token_id
    wanted_sums, wanted = gradients(model, lambda: LabelSmoothedObjective(model, 0.2)(*collate(*sides, pad)))
    objective = PackedObjective(model, 0.2, compiled=False)
    sums, found = gradients(model, lambda: objective(*pack(*sides, pad)))
    assert sums.tokens == wanted_sums.tokens
    torch.testing.assert_close(sums, wanted_sums, rtol=1e-9, atol=0)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-7, atol=1e-10, msg=name)


def test_a_model_in_training_drops_and_one_in_evaluation_does_not(random_model, sides, on_a_cpu):
    model = random_model(**WIDTHS, dropout=0.3, activation_dropout=0.2)
    objective = PackedObjective(model, 0.2, compiled=False)

    def losses():
        return [objective(*pack(*sides, model.config.pad_token_id)).loss.item() for _ in range(2)]

    one, other = losses()
    assert one == other
    objective.train()
    one, other = losses()
    assert one != other


def test_dropout_is_where_the_paper_has_it(random_model, sides, on_a_cpu, monkeypatch):
    dropped = []
    for module in (objective_module, modeling_vaswani, packed_operations):
        monkeypatch.setattr(module, "dropout", lambda states, p, training: dropped.append(p) or states)
    model = random_model(**WIDTHS, dropout=0.3, activation_dropout=0.2).train()
    PackedObjective(model, 0.2, compiled=False)(*pack(*sides, model.config.pad_token_id))
    encoder, decoder = [0.3, 0.2, 0.3], [0.3, 0.3, 0.2, 0.3]  # sublayers, and within the feed-forward network
    assert dropped == [0.3, *2 * encoder, 0.3, *2 * decoder]


@pytest.mark.parametrize("compiled", [False, True])
def test_the_loss_is_compiled_where_the_model_is(random_model, sides, on_a_cpu, monkeypatch, compiled):
    given = {}
    monkeypatch.setattr(objective_module, "fused_label_smoothed_sums", lambda *_, **named: given.update(named))
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    PackedObjective(random_model(**WIDTHS), 0.2, compiled)(*pack(*sides, 22))
    assert given["compiled"] is compiled


@pytest.mark.smoke
def test_one_graph_serves_batches_of_all_sizes(random_model, monkeypatch):
    counter = CompileCounter()
    model = random_model(**WIDTHS, encoder_layers=3).train()
    given = {}
    monkeypatch.setattr(torch, "compile", lambda function, **options: given.update(options) or function)
    objective = PackedObjective(model, 0.2, compiled=True)
    monkeypatch.undo()
    packed_operations.stand_in(monkeypatch)
    options = given.pop("options")
    assert given == {"dynamic": True}
    assert options == {"triton.mix_order_reduction_non_strict_mode": True} or not options  # an older torch
    compiled = torch.compile(objective.decoder_states, backend=counter, fullgraph=True, **given)
    generator = np.random.default_rng(3)
    with torch.no_grad():
        for count in (60, 40, 90, 30):
            lengths = generator.integers(1, 20, (2, count))
            batch = pack(*(Side(generator.integers(1, 20, each.sum()), each) for each in lengths), 22)
            compiled(model, batch[:3], batch[3:])
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, None),
        ({"attention_restriction": 3}, "attention is restricted (attention_restriction=3)"),
        ({"attention_dropout": 0.1}, "the kernels for it have no attention_dropout, here 0.1"),
        ({"position_embedding_type": "learned"}, "positions must be sinusoidal for it, and are learned"),
        ({"head_dim": 48}, "the kernels for it want heads of 16, 32, 64, ... columns, and one has 48"),
        ({"v_head_dim": 8}, "the kernels for it want heads of 16, 32, 64, ... columns, and one has 8"),
    ],
)
def test_it_says_why_a_models_sentences_are_padded(random_model, on_a_cpu, settings, reason):
    assert why_not(random_model(**(WIDTHS | settings)), *PLACE) == reason


def test_a_model_of_another_kind_is_padded():
    assert why_not(nn.Linear(1, 1), *PLACE) == "only the Transformer's need not be, and this is Linear"


def test_the_kernels_are_tried_as_a_layer_needs_them(random_model, monkeypatch):
    tried = []

    def attend(query, key, value, *seen_and_heads_and_scale):
        *seen, heads, scale = seen_and_heads_and_scale
        tried.append(
            (query.shape, key.shape, value.shape, query.dtype, [each.tolist() for each in seen], heads, scale)
        )
        value.register_hook(lambda gradient: tried.append("gradients of attention"))
        return packed_operations.attend(query, key, value, *seen, heads, scale)

    def add_and_norm(states, output, gain, bias, seed, eps, p):
        tried.append((states.shape, output.dtype, gain.dtype, eps, p))
        states.register_hook(lambda gradient: tried.append("gradients of the norm"))
        return packed_operations.add_and_norm(states, output, gain, bias, seed, eps, p)

    monkeypatch.setattr(objective_module, "attend", attend)
    monkeypatch.setattr(objective_module, "add_and_norm", add_and_norm)
    assert why_not(random_model(**WIDTHS, dropout=0.3, layer_norm_eps=0.5), *PLACE) is None
    rows = 2 * BLOCK
    ends = [[end] * rows for end in (0, rows)] * 2
    assert tried[0] == ((rows, 48), (rows, 48), (rows, 96), torch.bfloat16, ends, 3, 0.25)
    assert tried[1] == ((rows, 48), torch.bfloat16, torch.float32, 0.5, 0.3)
    assert sorted(tried[2:]) == ["gradients of attention", "gradients of the norm"]


def test_where_they_do_not_work_sentences_are_padded(random_model):
    """On a CPU there are none."""
    reason = why_not(random_model(**WIDTHS), *PLACE)
    assert reason.startswith("Triton's kernels do not work here (")
    assert "\n" not in reason


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("compiled", [False, True])
def test_so_are_they_on_a_gpu(random_model, sides, compiled):
    model = random_model(**WIDTHS).train()
    pad = model.config.pad_token_id
    truth = copy.deepcopy(model).double()
    _, wanted = gradients(truth, lambda: LabelSmoothedObjective(truth, 0.2)(*collate(*sides, pad)))
    model.cuda()
    objective = PackedObjective(model, 0.2, compiled)

    def compute():
        with torch.autocast("cuda", torch.bfloat16):
            return objective(*(tensor.cuda() for tensor in pack(*sides, pad)))

    _, found = gradients(model, compute)
    assert found.keys() == wanted.keys()
    error = sum((found[name].cpu().double() - wanted[name]).square().sum() for name in wanted)
    assert error < 0.03**2 * sum(gradient.square().sum() for gradient in wanted.values())
