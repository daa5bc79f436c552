"""Training with the kernels against the model's own methods, whose float64 gradients are the truth."""

import copy

import pytest
import torch
from torch import nn

from training.cpu import kernels
from training.cpu.kernels import CannotCompile, Dropout
from training.cpu.model import why_not
from training.objective.loss import LabelSmoothedObjective
from vaswani.models import attention_vaswani, modeling_vaswani


WIDTHS = {
    "d_model": 48, "encoder_ffn_dim": 64, "decoder_ffn_dim": 80, "head_dim": 16, "v_head_dim": 32,
    "encoder_attention_heads": 3, "decoder_attention_heads": 2,
}  # fmt: skip

RTOL = {torch.bfloat16: 2e-3, torch.float32: 1e-6}  # of losses


@pytest.fixture
def problem(random_model, batch):
    """Return a model in training with its batch. No key's bias has a gradient, as in training."""

    def make(**settings):
        model = random_model(**(WIDTHS | settings)).train()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not name.endswith("k_proj.bias"))
        return model, batch(model.config)

    return make


@pytest.fixture(params=[torch.bfloat16, torch.float32], ids=str)
def dtype(request):
    return request.param


def gradients(model, inputs, dtype=None, **options):
    """Return the loss, and all gradients by name, as float64."""
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        sums = LabelSmoothedObjective(model, 0.2, **options)(**inputs)
    (sums.loss / sums.tokens).backward()
    found = {name: each.grad.double() for name, each in model.named_parameters() if each.grad is not None}
    return sums, found


def distance(found, wanted):
    assert found.keys() == wanted.keys()
    squares = [((found[name] - wanted[name]).square().sum(), wanted[name].square().sum()) for name in wanted]
    return (sum(error for error, _ in squares) / sum(size for _, size in squares)).sqrt().item()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tie_word_embeddings": False},
        {"position_embedding_type": "learned"},
        {"attention_bias": False},
        {"lm_head_bias": True},
        {"layer_norm_eps": 0.5},
        {"encoder_layers": 1, "decoder_layers": 3},
        {"encoder_attention_heads": 4, "head_dim": 8, "v_head_dim": 40},
    ],
    ids=str,
)
def test_gradients_err_hardly_more_than_those_of_plain_operations(problem, settings, dtype):
    """On average: in one batch of a model so small, a state of a ReLU that is near zero decides which errs more."""
    errors = []
    for seed in range(16 if dtype == torch.bfloat16 else 4):
        torch.manual_seed(seed)
        model, inputs = problem(dropout=0.0, **settings)
        exact_sums, exact = gradients(copy.deepcopy(model).double(), inputs)
        _, plain = gradients(model, inputs, dtype)
        sums, found = gradients(model, inputs, dtype, kernels_dtype=dtype)
        assert sums.tokens == exact_sums.tokens
        assert torch.allclose(torch.stack(sums[:2]).double(), torch.stack(exact_sums[:2]).double(), rtol=RTOL[dtype])
        assert all(gradient.dtype == torch.float64 and gradient.isfinite().all() for gradient in found.values())
        errors.append((distance(found, exact), distance(plain, exact)))
    found_error, plain_error = torch.tensor(errors).mean(0)
    assert found_error < 1.2 * plain_error


@pytest.fixture
def record(monkeypatch):
    """Let the kernels' dropouts be recorded, and then let the model's own methods drop the same elements."""
    recorded: list[Dropout] = []
    real: dict[int, torch.Tensor] = {}  # which places of the source and of the target, by their length, are positions
    draw = Dropout.of.__func__

    def of(cls, p):
        recorded.append(draw(cls, p))
        return recorded[-1]

    def mask_of(dropout, rows, width):
        nothing, ones = torch.zeros(rows, dtype=torch.int64), torch.ones(1, width)
        return kernels.embed(nothing, nothing, 0 * ones, ones, 0, 1.0, dropout, torch.bfloat16)[0][:rows]

    def again(states, p, training):
        dropout = recorded.pop(0)
        assert dropout.threshold == round(p * 2**32)
        if states.dim() == 4:  # attention weights, which the kernels have transposed, with 16 queries at a time
            return states * weights_mask(dropout, *states.shape)
        is_real = real[states.shape[1]]  # what is no position of a sentence has no row
        mask = torch.ones(states.shape)
        mask[is_real] = mask_of(dropout, int(is_real.sum()), states.shape[2])
        return states * mask

    def weights_mask(dropout, batch, heads, queries, keys):
        """Keys that are not of a sentence have no row, either: those that are come first."""
        rows = int(real[keys].sum(1).max())
        columns = -(-int(real[queries].sum(1).max()) // 16) * 16
        compact = mask_of(dropout, batch * heads * rows, columns).unflatten(0, (batch, heads, rows))
        mask = torch.ones(batch, heads, queries, keys)
        for sentence in range(batch):
            q, k = (real[length][sentence].nonzero()[:, 0] for length in (queries, keys))
            mask[sentence][:, q[:, None], k] = compact[sentence, :, : len(k), : len(q)].transpose(1, 2)
        return mask

    monkeypatch.setattr(Dropout, "of", classmethod(of))
    monkeypatch.setattr(modeling_vaswani, "dropout", again)
    monkeypatch.setattr(attention_vaswani.nn.functional, "dropout", again)
    return recorded, real


@pytest.mark.parametrize("rdrop_alpha", [None, 5.0])
def test_each_dropout_is_in_its_place(problem, record, rdrop_alpha, dtype):
    recorded, real = record
    model, inputs = problem(dropout=0.3, attention_dropout=0.2, activation_dropout=0.1)
    for mask in inputs["attention_mask"].bool(), inputs["labels"] != -100:
        real[mask.shape[1]] = mask if rdrop_alpha is None else torch.cat([mask, mask])
    model.set_attn_implementation("eager")
    sums, found = gradients(model, inputs, dtype, rdrop_alpha=rdrop_alpha, kernels_dtype=dtype)
    drawn = list(recorded)
    # The kernels embed both sides at first, and the model those of the decoder behind the encoder.
    drawn.insert(1 + 4 * model.config.encoder_layers, drawn.pop(1))
    recorded[:] = drawn
    exact_sums, exact = gradients(copy.deepcopy(model).double(), inputs, rdrop_alpha=rdrop_alpha)
    assert not recorded
    recorded[:] = drawn
    error = distance(gradients(model, inputs, dtype, rdrop_alpha=rdrop_alpha)[1], exact)
    assert torch.allclose(sums.loss.double(), exact_sums.loss.double(), rtol=RTOL[dtype])
    assert distance(found, exact) < 1.2 * error
    drawn[0].seed += 1  # the control: other elements are dropped in one place
    recorded[:] = drawn
    assert distance(found, gradients(copy.deepcopy(model).double(), inputs, rdrop_alpha=rdrop_alpha)[1]) > 5 * error


def test_in_evaluation_nothing_is_dropped(problem, dtype):
    model, inputs = problem(dropout=0.3)
    losses = [gradients(model.eval(), inputs, dtype, kernels_dtype=dtype)[0].loss for _ in range(2)]
    assert losses[0] == losses[1]
    assert losses[0] != gradients(model.train(), inputs, dtype, kernels_dtype=dtype)[0].loss


def test_a_place_without_a_label_is_seen_by_those_behind_it(problem, dtype):
    model, inputs = problem(dropout=0.0)
    inputs["labels"][:, 1] = -100
    exact_sums, exact = gradients(copy.deepcopy(model).double(), inputs)
    sums, found = gradients(model, inputs, dtype, kernels_dtype=dtype)
    assert sums.tokens == exact_sums.tokens
    assert torch.allclose(sums.loss.double(), exact_sums.loss.double(), rtol=RTOL[dtype])
    assert distance(found, exact) < (0.05 if dtype == torch.bfloat16 else 1e-5)


def test_products_are_in_their_type_with_autocast_and_without(problem, dtype):
    model, inputs = problem(dropout=0.0)
    sums = [gradients(model, inputs, each, kernels_dtype=dtype)[0] for each in (torch.bfloat16, None)]
    assert torch.equal(sums[0].loss, sums[1].loss)
    exact = gradients(copy.deepcopy(model).double(), inputs)[0].loss
    assert (abs(sums[0].loss - exact) < 1e-6 * exact) == (dtype == torch.float32)


@pytest.mark.parametrize(("name", "id_"), [("input_ids", -1), ("input_ids", 37), ("labels", 37)])
def test_an_id_without_an_embedding_is_refused(problem, name, id_):
    model, inputs = problem(vocab_size=37)
    inputs[name][0, -1] = id_
    with pytest.raises(IndexError, match=r"they must be from 0 to 36, as there are embeddings"):
        LabelSmoothedObjective(model, 0.1, kernels_dtype=torch.bfloat16)(**inputs)


@pytest.mark.parametrize("rdrop_alpha", [None, 5.0])
def test_without_targets_all_gradients_are_zero(problem, rdrop_alpha, dtype):
    model, inputs = problem()
    inputs["labels"] = torch.full((4, 3), -100)
    LabelSmoothedObjective(model, 0.1, rdrop_alpha, kernels_dtype=dtype)(**inputs).loss.backward()
    for name, parameter in model.named_parameters():
        assert not parameter.requires_grad or not parameter.grad.any(), name


def test_why_not_names_what_stands_in_the_way(problem, random_model, monkeypatch):
    model, _ = problem()
    assert why_not(model, torch.bfloat16) is None
    for settings, said in (
        ({"attention_restriction": 3}, "attention_restriction=3"),
        ({"activation_function": "swish"}, "'swish', only 'relu'"),
        ({"head_dim": 8}, "multiples of 16, of all heads together as well, and one is 24"),
        ({"v_head_dim": 8}, "one is 24"),
        ({"encoder_ffn_dim": 40}, "one is 40"),
        ({"decoder_ffn_dim": 40}, "one is 40"),
    ):
        assert said in why_not(random_model(**(WIDTHS | settings)), torch.bfloat16), settings
    assert "not for Linear" in why_not(nn.Linear(3, 3), torch.bfloat16)
    half = copy.deepcopy(model)
    half.lm_head.weight = nn.Parameter(half.lm_head.weight.detach().bfloat16())
    assert "is torch.bfloat16" in why_not(half, torch.bfloat16)
    turned = copy.deepcopy(model)
    turned.lm_head.weight = nn.Parameter(turned.lm_head.weight.detach().T.contiguous().T)
    assert why_not(turned, torch.bfloat16) == "they are for contiguous weights, and lm_head.weight is not"

    def fail(dtype):
        raise CannotCompile("no compiler")

    monkeypatch.setattr(kernels, "library", fail)
    assert why_not(model, torch.bfloat16) == "no compiler"
