"""Training without padding against the same model with padded batches, whose float64 gradients are the truth.

FlexAttention has no gradients without a GPU. What stands in for it here computes the blocks of its mask alone.
"""

import copy

import numpy as np
import pytest
import torch
from packed_attention import attention_by_blocks, mask_of
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.nn.attention.flex_attention import flex_attention

from training.data.batch_plan import Side, collate
from training.data.packing import BLOCK, pack
from training.gpu import objective as objective_module
from training.gpu.objective import PackedObjective, block_mask, why_not
from training.objective.loss import LabelSmoothedObjective
from vaswani.models import modeling_vaswani


WIDTHS = {
    "d_model": 48, "encoder_ffn_dim": 64, "decoder_ffn_dim": 80, "head_dim": 16, "v_head_dim": 32,
    "encoder_attention_heads": 3, "decoder_attention_heads": 2,
}  # fmt: skip

PLACE = torch.device("cpu"), torch.bfloat16


@pytest.fixture
def attention_on_a_cpu(monkeypatch):
    monkeypatch.setattr(objective_module, "compiled_attention", attention_by_blocks)


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
def test_loss_and_gradients_are_those_of_padded_batches(random_model, sides, attention_on_a_cpu, settings):
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


def test_a_model_in_training_drops_and_one_in_evaluation_does_not(random_model, sides, attention_on_a_cpu):
    model = random_model(**WIDTHS, dropout=0.3, activation_dropout=0.2)
    objective = PackedObjective(model, 0.2, compiled=False)

    def losses():
        return [objective(*pack(*sides, model.config.pad_token_id)).loss.item() for _ in range(2)]

    one, other = losses()
    assert one == other
    objective.train()
    one, other = losses()
    assert one != other


def test_dropout_is_where_the_paper_has_it(random_model, sides, attention_on_a_cpu, monkeypatch):
    dropped = []
    for module in (objective_module, modeling_vaswani):
        monkeypatch.setattr(module, "dropout", lambda states, p, training: dropped.append(p) or states)
    model = random_model(**WIDTHS, dropout=0.3, activation_dropout=0.2).train()
    PackedObjective(model, 0.2, compiled=False)(*pack(*sides, model.config.pad_token_id))
    encoder, decoder = [0.3, 0.2, 0.3], [0.3, 0.3, 0.2, 0.3]  # sublayers, and within the feed-forward network
    assert dropped == [0.3, *2 * encoder, 0.3, *2 * decoder]


@pytest.mark.parametrize("is_causal", [False, True])
def test_no_block_is_left_out_in_which_a_query_sees_a_key(is_causal):
    generator = np.random.default_rng(2)
    for count, longest in ((3, 500), (60, 30), (300, 3), (1, 1)):
        lengths = generator.integers(1, longest + 1, (2, count))
        batch = pack(*(Side(np.ones(each.sum(), int), each) for each in lengths), 9)
        queries = batch.target_sentences
        keys = queries if is_causal else batch.source_sentences
        wanted = queries[:, None] == keys
        mask = block_mask(queries, keys, is_causal)
        assert mask_of(mask).equal(wanted.tril() if is_causal else wanted)
        if is_causal:
            assert not mask.to_dense().triu(1).any()
        if count == 300:  # and most others are
            assert mask.to_dense().float().mean() < 0.6


@pytest.mark.parametrize("compiled", [False, True])
def test_the_loss_is_compiled_where_the_model_is(random_model, sides, attention_on_a_cpu, monkeypatch, compiled):
    given = {}
    monkeypatch.setattr(objective_module, "fused_label_smoothed_sums", lambda *_, **named: given.update(named))
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    PackedObjective(random_model(**WIDTHS), 0.2, compiled)(*pack(*sides, 22))
    assert given["compiled"] is compiled


@pytest.mark.smoke
def test_one_graph_serves_batches_of_all_sizes(random_model, monkeypatch):
    counter = CompileCounter()
    monkeypatch.setattr(objective_module, "compiled_attention", flex_attention)
    model = random_model(**WIDTHS, encoder_layers=3).train()
    given = {}
    monkeypatch.setattr(torch, "compile", lambda function, **options: given.update(options) or function)
    objective = PackedObjective(model, 0.2, compiled=True)
    monkeypatch.undo()
    monkeypatch.setattr(objective_module, "compiled_attention", flex_attention)
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
        ({"attention_dropout": 0.1}, "FlexAttention has no attention_dropout, here 0.1"),
        ({"position_embedding_type": "learned"}, "positions must be sinusoidal for it, and are learned"),
        ({"head_dim": 48}, "FlexAttention wants heads of 16, 32, 64, ... columns, and one has 48"),
        ({"v_head_dim": 8}, "FlexAttention wants heads of 16, 32, 64, ... columns, and one has 8"),
    ],
)
def test_it_says_why_a_models_sentences_are_padded(random_model, attention_on_a_cpu, settings, reason):
    assert why_not(random_model(**(WIDTHS | settings)), *PLACE) == reason


def test_a_model_of_another_kind_is_padded():
    assert why_not(nn.Linear(1, 1), *PLACE) == "only the Transformer's need not be, and this is Linear"


def test_attention_is_tried_as_a_layer_needs_it(random_model, monkeypatch):
    tried = []

    def attention(query, key, value, block_mask, scale):
        tried.append((query.shape, key.shape, value.shape, query.dtype, block_mask.seq_lengths, scale))
        value.register_hook(lambda gradient: tried.append("gradients"))
        return attention_by_blocks(query, key, value, block_mask, scale)

    monkeypatch.setattr(objective_module, "compiled_attention", attention)
    assert why_not(random_model(**WIDTHS), *PLACE) is None
    rows = 2 * BLOCK
    shapes = (1, 3, rows, 16), (1, 3, rows, 16), (1, 3, rows, 32)
    assert tried == [(*shapes, torch.bfloat16, (rows, rows), 0.25), "gradients"]


def test_where_it_does_not_work_sentences_are_padded(random_model):
    """On a CPU it has no gradients."""
    reason = why_not(random_model(**WIDTHS), *PLACE)
    assert reason.startswith("FlexAttention does not work here (")
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
