from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, kl_div, linear

from training.objective import loss as loss_module
from training.objective.loss import (
    LabelSmoothedObjective,
    LossSums,
    fused_label_smoothed_sums,
    label_smoothed_sums,
    positions_at_a_time,
    softmax_and_logsumexp,
)


fused = partial(fused_label_smoothed_sums, label_smoothing=0.1)


def smoothed_in_numpy(logits: np.ndarray, labels: np.ndarray, epsilon: float) -> tuple[float, float, int]:
    """Section 5.4 as the original code has it, one token after the other."""
    loss = nll = tokens = 0
    for row, label in zip(logits.astype(np.float64), labels, strict=True):
        if label == -100:
            continue
        log_probabilities = row - np.log(np.exp(row).sum())
        wanted = np.full(len(row), epsilon / (len(row) - 1))
        wanted[label] = 1 - epsilon
        loss, nll, tokens = loss - wanted @ log_probabilities, nll - log_probabilities[label], tokens + 1
    return loss, nll, tokens


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5])
def test_sums_equal_the_definition(epsilon):
    logits, labels = torch.randn(3, 4, 11) * 3, torch.randint(0, 11, (3, 4))
    labels[0, 2:] = labels[2, 0] = -100
    expected = smoothed_in_numpy(logits.reshape(12, 11).numpy(), labels.reshape(12).numpy(), epsilon)
    assert np.allclose([value.item() for value in label_smoothed_sums(logits, labels, epsilon)], expected, rtol=1e-6)


def test_spreading_over_all_types_as_pytorch_does_is_something_else():
    logits, labels = torch.randn(8, 5) * 3, torch.randint(0, 5, (8,))
    pytorch = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=0.1, reduction="sum")
    assert abs(pytorch - label_smoothed_sums(logits, labels, 0.1).loss) > 1e-3


def test_the_gradient_is_that_of_the_smoothed_sum_alone():
    logits, labels = torch.randn(6, 7, dtype=torch.float64), torch.randint(0, 7, (6,))
    logits.requires_grad_()
    sums = label_smoothed_sums(logits, labels, 0.1)
    assert not sums.nll.requires_grad
    sums.loss.backward()
    wanted = torch.full((6, 7), 0.1 / 6, dtype=torch.float64).scatter(1, labels[:, None], 0.9)
    assert torch.allclose(logits.grad, logits.softmax(-1) - wanted, atol=1e-7)  # computed on in float32


def test_bfloat16_logits_are_summed_in_float32():
    logits, labels = torch.randn(4000, 5).bfloat16(), torch.randint(0, 5, (4000,))
    assert label_smoothed_sums(logits, labels, 0.1).loss.dtype == torch.float32


def by_logits(states: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> LossSums:
    return label_smoothed_sums(linear(states, weight), labels, 0.1)


def by_pytorch(states: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, epsilon: float = 0.1) -> LossSums:
    """Spread over all V types what leaves `epsilon` to the V - 1 that are not the target."""
    logits, spread = linear(states, weight), epsilon * len(weight) / (len(weight) - 1)
    loss = cross_entropy(logits, labels, label_smoothing=spread, reduction="sum")
    return LossSums(loss, cross_entropy(logits, labels, reduction="sum").detach(), (labels != -100).sum())


def some_states(count: int = 37, width: int = 16, vocab_size: int = 23, dtype: torch.dtype = torch.float64) -> tuple:
    labels = torch.randint(0, vocab_size, (count,))
    labels[::5] = -100
    return torch.randn(count, width, dtype=dtype), torch.randn(vocab_size, width, dtype=dtype), labels


def with_gradients(make_sums, states, weight, labels, scale: float = 3.0) -> list[torch.Tensor]:
    """Return loss and nll, and the gradients by states and weight of `scale` times the loss."""
    states, weight = states.clone().requires_grad_(), weight.clone().requires_grad_()
    sums = make_sums(states, weight, labels)
    (scale * sums.loss).backward()
    assert not sums.nll.requires_grad
    return [sums.loss.detach(), sums.nll, states.grad, weight.grad]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
@pytest.mark.parametrize("chunk", [1, 8, 36, 37, 38, None])
def test_the_fused_loss_and_its_gradients_equal_pytorchs_in_any_chunks(chunk, dtype, tolerance):
    problem = some_states(dtype=dtype)
    for ours, theirs in zip(
        with_gradients(partial(fused, chunk=chunk), *problem), with_gradients(by_pytorch, *problem), strict=True
    ):
        assert (ours - theirs).norm() <= tolerance * theirs.norm()


def test_the_fused_loss_is_not_that_of_pytorchs_convention():
    states, weight, labels = some_states()
    by_convention = cross_entropy(linear(states, weight), labels, label_smoothing=0.1, reduction="sum")
    loss = fused(states, weight, labels).loss
    assert abs(by_pytorch(states, weight, labels).loss - loss) < 1e-10
    assert abs(by_convention - loss) > 1e-2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_the_fused_loss_errs_no_more_than_the_plain_one(dtype):
    problem = some_states(600, 64, 2000, torch.float32)
    exact = with_gradients(by_pytorch, *problem)
    with torch.autocast("cpu", dtype):
        plain, ours = with_gradients(by_logits, *problem), with_gradients(fused, *problem)
    for right, by_plain, by_fused in zip(exact, plain, ours, strict=True):
        assert by_fused.dtype == torch.float32
        # The sums' errors are chance: both are far below what the gradients' show, 1e-2 and 1e-3.
        assert (by_fused - right).norm() <= 1.05 * (by_plain - right).norm() + 1e-4 * right.norm()


def test_in_float16_the_small_share_of_every_other_type_is_not_lost():
    # Where all is learned, the gradient is that of the smoothing: 0.1 / 36,999 a type, subnormal in float16.
    states, weight = torch.full((1, 8), 4.0), torch.zeros(37_000, 8)
    weight[5] = 8.0
    labels = torch.tensor([5])
    exact = with_gradients(by_pytorch, states, weight, labels, 1.0)[3]
    with torch.autocast("cpu", torch.float16):
        ours = with_gradients(fused, states, weight, labels, 1.0)[3]
    assert torch.allclose(ours, exact, rtol=1e-3, atol=0)


@pytest.mark.parametrize("count", [0, 6])
def test_without_any_target_the_fused_loss_and_its_gradients_are_zero(count):
    states, weight, labels = some_states(count)
    for value in with_gradients(fused, states, weight, labels.fill_(-100)):
        assert not value.any()


def test_without_gradients_the_fused_loss_is_the_same():
    problem = some_states()
    expected = with_gradients(fused, *problem, scale=1.0)[0]
    with torch.no_grad():
        assert fused(*problem).loss == expected


def test_the_products_of_the_fused_loss_are_in_the_type_of_autocast():
    types = set()

    def normalize(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        types.add(logits.dtype)
        return softmax_and_logsumexp(logits)

    with torch.autocast("cpu", torch.bfloat16):
        fused(*some_states(dtype=torch.float32), normalize=normalize)
    assert types == {torch.bfloat16}


@pytest.mark.parametrize(("tied", "biased"), [(True, False), (False, False), (True, True), (False, True)])
def test_the_objective_gives_every_parameter_the_gradient_of_the_logits_path(random_model, batch, tied, biased):
    model = random_model(tie_word_embeddings=tied, lm_head_bias=biased)
    inputs = batch(model.config)
    objective = LabelSmoothedObjective(model, 0.1)
    sums = objective(**inputs)
    sums.loss.backward()
    # Untied, `shared` is no part of any computation.
    found = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    assert len(found) == len(list(model.parameters())) - (not tied)
    model.zero_grad()
    decoder_input_ids = model.prepare_decoder_input_ids_from_labels(inputs["labels"])
    logits = model(inputs["input_ids"], inputs["attention_mask"], decoder_input_ids=decoder_input_ids).logits
    expected = label_smoothed_sums(logits, inputs["labels"], 0.1)
    expected.loss.backward()
    assert sums.tokens == expected.tokens
    assert torch.allclose(torch.stack(sums[:2]), torch.stack(expected[:2]), rtol=1e-6)
    for parameter in model.lm_head.parameters():
        parameter.grad[model.config.pad_token_id] = 0  # the objective leaves <pad> as it is
    for name, gradient in found.items():
        # A key's bias moves all scores of a query alike: its gradient is rounding.
        assert torch.allclose(gradient, model.get_parameter(name).grad, rtol=1e-4, atol=1e-4), name


def with_divergence(states, weight, labels, alpha: float = 5.0) -> LossSums:
    """R-Drop in PyTorch's own terms: the smoothed cross-entropy of both halves, and alpha times half of both KLs."""
    sums, logs = by_pytorch(states, weight, labels), linear(states, weight).log_softmax(-1)
    logs = logs.masked_fill((labels == -100)[:, None], 0)
    kl = partial(kl_div, reduction="sum", log_target=True)
    both = kl(*logs.chunk(2)) + kl(*reversed(logs.chunk(2)))
    return LossSums(sums.loss + alpha * both / 2, sums.nll, sums.tokens)


@pytest.mark.parametrize("chunk", [1, 7, 37, 38, None])
def test_r_drop_adds_the_divergence_of_the_two_halves_in_any_chunks(chunk):
    _, weight, labels = some_states()
    states, labels = torch.randn(74, 16, dtype=torch.float64), torch.cat([labels, labels])
    ours = with_gradients(partial(fused, chunk=chunk, rdrop_alpha=5.0), states, weight, labels)
    for found, wanted in zip(ours, with_gradients(with_divergence, states, weight, labels), strict=True):
        assert (found - wanted).norm() <= 1e-12 * wanted.norm()
    without = with_gradients(partial(fused, chunk=chunk), states, weight, labels)  # the control
    assert abs(without[0] - ours[0]) > 1
    assert without[1] == pytest.approx(ours[1])


def test_r_drop_in_half_precision_errs_hardly_more_than_plain_operations_do():
    _, weight, labels = some_states(300, 64, 2000, torch.float32)
    states = torch.randn(300, 64)
    states, labels = torch.cat([states, states + 0.3 * torch.randn(300, 64)]), torch.cat([labels, labels])
    exact = with_gradients(with_divergence, states, weight, labels)
    with torch.autocast("cpu", torch.bfloat16):
        plain = with_gradients(with_divergence, states, weight, labels)
        ours = with_gradients(partial(fused, rdrop_alpha=5.0), states, weight, labels)
    for right, by_plain, by_fused in zip(exact, plain, ours, strict=True):
        assert (by_fused - right).norm() <= 1.05 * (by_plain - right).norm() + 1e-4 * right.norm()


def test_the_objective_of_r_drop_is_the_mean_of_two_passes_and_what_keeps_them_apart(random_model, batch):
    model = random_model(dropout=0.0)
    inputs = batch(model.config)
    plain, twice = LabelSmoothedObjective(model, 0.1), LabelSmoothedObjective(model, 0.1, rdrop_alpha=5.0)
    assert torch.allclose(torch.stack(plain(**inputs)), torch.stack(twice(**inputs)), rtol=1e-5)
    model = random_model(dropout=0.3).train()
    losses = {}
    for alpha in (1e-9, 5.0, 10.0):
        torch.manual_seed(0)
        losses[alpha] = LabelSmoothedObjective(model, 0.1, rdrop_alpha=alpha)(**inputs).loss.item()
    assert losses[5.0] > losses[1e-9] + 0.01
    assert losses[10.0] - losses[1e-9] == pytest.approx(2 * (losses[5.0] - losses[1e-9]), rel=1e-3)


@pytest.mark.parametrize("epsilon", [0.0, 0.3])
def test_the_objective_smooths_as_it_is_told(random_model, batch, epsilon):
    model = random_model()
    inputs = batch(model.config)
    with torch.no_grad():
        sums, logits = LabelSmoothedObjective(model, epsilon)(**inputs), model(**inputs).logits
    expected = label_smoothed_sums(logits, inputs["labels"], epsilon)
    assert torch.allclose(sums.loss, expected.loss, rtol=1e-5)
    assert (sums.loss == sums.nll) == (epsilon == 0)


@pytest.mark.parametrize(("chunk", "sizes"), [(15, [15, 15, 7]), (None, [20, 17])])
def test_no_more_logits_exist_at_a_time_than_a_chunk_has(monkeypatch, chunk, sizes):
    found = []

    def record(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found.append(len(logits))
        return softmax_and_logsumexp(logits)

    monkeypatch.setattr(loss_module, "softmax_and_logsumexp", record)
    monkeypatch.setattr(loss_module, "CHUNK_ON_CPU", 20)
    fused(*some_states(), chunk=chunk)
    assert found == sizes


def test_a_batch_without_targets_gives_every_parameter_a_gradient_of_zero(random_model, batch):
    model = random_model()
    inputs = batch(model.config)
    inputs["labels"] = torch.full((4, 3), -100)
    LabelSmoothedObjective(model, 0.1)(**inputs).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


def test_a_compiled_objective_compiles_the_model_and_the_softmax_and_returns_the_same(
    random_model, batch, monkeypatch
):
    graphs = []

    def count(graph: torch.fx.GraphModule, _) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    softmax = torch.compile(loss_module.softmax_and_logsumexp, backend=count)
    monkeypatch.setattr(loss_module, "compiled_softmax_and_logsumexp", lambda: softmax)
    monkeypatch.setattr(loss_module, "CHUNK_ON_CPU", 5)
    model = random_model()
    objective = LabelSmoothedObjective(model, 0.1)
    inputs = batch(model.config)
    expected = objective(**inputs)
    objective.compile(backend=count, dynamic=True)
    compiled = objective(**inputs)
    compiled.loss.backward()
    assert torch.allclose(torch.stack(compiled[:2]), torch.stack(expected[:2]), rtol=1e-6)
    assert model.lm_head.weight.grad.any()
    graphs_of_first_shape = len(graphs)
    assert any("softmax" in graph.code for graph in graphs)
    assert any("layer_norm" in graph.code for graph in graphs)
    for source_length, target_length in ((9, 8), (5, 4), (8, 11)):
        objective(**batch(model.config, source_length, target_length))
    assert len(graphs) <= graphs_of_first_shape + 1  # other lengths, and other numbers of chunks, need no new ones


def test_a_gpu_computes_more_positions_at_a_time_most_where_compiled():
    assert positions_at_a_time("cpu", False) == positions_at_a_time("cpu", True) == 384
    assert (positions_at_a_time("cuda", False), positions_at_a_time("cuda", True)) == (2048, 8192)


def test_a_softmax_in_one_pass_takes_more_positions_at_a_time_and_is_asked(monkeypatch):
    asked, given = [], []
    monkeypatch.setattr(loss_module, "positions_at_a_time", lambda *how: asked.append(how) or 3)
    states, weight, labels = torch.randn(8, 4), torch.randn(6, 4), torch.arange(8) % 6

    def normalize(logits):
        given.append(len(logits))
        return loss_module.softmax_and_logsumexp(logits)

    plain, other = fused(states, weight, labels), fused(states, weight, labels, normalize=normalize)
    assert other.loss.equal(plain.loss)
    assert (asked, given) == ([("cpu", False), ("cpu", True)], [3, 3, 2])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_logits_of_the_papers_batch_never_exist_at_once():
    count, width, vocab_size = 25_000, 512, 37_000
    states = torch.randn(count, width, device="cuda", requires_grad=True)
    weight = (torch.randn(vocab_size, width, device="cuda") * width**-0.5).requires_grad_()
    labels = torch.randint(0, vocab_size, (count,), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.autocast("cuda", torch.bfloat16):
        sums = fused(states, weight, labels)
    sums.loss.backward()
    # Of this, 0.3 GB are the gradients and their scaled copies, and 0.9 GB a chunk's logits.
    assert torch.cuda.max_memory_allocated() - before < 0.45 * count * vocab_size * 4
