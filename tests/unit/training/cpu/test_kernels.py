"""The kernels against PyTorch's own operations in float64, on the values as bfloat16 has them."""

import pytest
import torch
from torch.nn.functional import layer_norm

from training.cpu import kernels
from training.cpu.kernels import CannotCompile, Dropout, Projected, Shape


WIDTH, ROWS = 48, 70  # one full matrix of 64 rows, and another


def matrix(rows=ROWS, width=WIDTH):
    """A random matrix in bfloat16. What stands in its rows of padding must not matter."""
    values = torch.randn(kernels.padded(rows), width).bfloat16()
    values[rows:] = torch.nan
    return values


def exact(values, rows=ROWS):
    return values[:rows].double().requires_grad_()


def assert_rounded(found, wanted):
    """Seven bits of each element are right, or of the largest where it is a sum; on the whole all eight are."""
    error = found[: len(wanted)].double() - wanted
    assert (error.abs() <= 2**-7 * wanted.abs() + 2**-8 * wanted.abs().max()).all()
    assert error.norm() <= 2**-8 * wanted.norm()


def mask_of(dropout, rows, width):
    """What elements are multiplied by, as `embed` shows it of positions that are all one."""
    ids = torch.zeros(1, rows, dtype=torch.int64)
    return kernels.embed(ids, torch.zeros(1, width), torch.ones(rows, width), 0, 1.0, dropout)[0][:rows].double()


@pytest.fixture(params=[0.0, 0.3])
def dropout(request):
    torch.manual_seed(1)
    return Dropout.of(request.param)


def test_dropout_drops_its_share_and_keeps_the_mean():
    torch.manual_seed(0)
    for p in (0.1, 0.3, 0.9):
        mask = mask_of(Dropout.of(p), 1000, 1600)
        assert mask.unique().tolist() == pytest.approx([0, 1 / (1 - p)])
        assert abs((mask == 0).double().mean() - p) < 4 * (p * (1 - p) / mask.numel()) ** 0.5
        for dimension in (0, 1):  # no row and no column has a share of its own
            spread = (mask == 0).double().mean(dimension).std() / (p * (1 - p) / mask.shape[dimension]) ** 0.5
            assert 0.9 < spread < 1.1
    assert mask_of(Dropout.of(0.0), 3, 16).eq(1).all()
    assert mask_of(Dropout.of(1.0), 300, 16).eq(0).all()


def test_dropout_is_as_random_between_elements_and_between_seeds_as_it_is_within():
    torch.manual_seed(0)
    masks = torch.stack([mask_of(Dropout.of(0.5), 1, 160_000)[0] - 1 for _ in range(20)])
    others = [masks[:, 1:] * masks[:, :-1], masks[:, 16:] * masks[:, :-16], masks[1:] * masks[:-1]]
    for products in others:  # of values +-1: their means are near zero
        assert abs(products.mean()) < 4 / products.numel() ** 0.5
    most_alike = (masks @ masks.T / masks.shape[1]).fill_diagonal_(0).abs().max()
    assert most_alike < 5 / masks.shape[1] ** 0.5


def test_dropout_is_a_function_of_torchs_seed():
    seeds = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        seeds.append([Dropout.of(0.1).seed for _ in range(3)])
    assert seeds[0] == seeds[1]
    assert len({*seeds[0], *seeds[2]}) == 6


@pytest.mark.parametrize("pad", [2, -1])
def test_embeddings_and_their_gradients(dropout, pad):
    ids, table, positions = torch.randint(0, 9, (10, 7)), torch.randn(9, WIDTH), torch.randn(7, WIDTH)
    inputs = exact(table, 9), exact(positions, 7)
    embedded = (inputs[0] * 3)[ids].masked_fill((ids == pad)[..., None], 0)
    mask = mask_of(dropout, ROWS, WIDTH)
    wanted = (embedded + inputs[1]).flatten(0, 1) * mask
    output, rounded = kernels.embed(ids, table, positions, pad, 3.0, dropout)
    assert torch.allclose(output[:ROWS].double(), wanted, atol=1e-6)
    assert torch.equal(rounded[:ROWS], output[:ROWS].bfloat16())
    assert not rounded[ROWS:].any()
    d_output, d_rounded, d_table = matrix().float(), matrix(), torch.ones(9, WIDTH)
    d_sums = torch.empty(10, 7, WIDTH)
    wanted.backward(exact(d_output) + exact(d_rounded))
    for place in (d_sums, None):
        kernels.embed_backward(d_output, d_rounded, ids, pad, 3.0, dropout, d_table, place)
    assert torch.allclose(d_table.double(), 1 + 2 * inputs[0].grad, atol=1e-4)  # added, twice
    assert torch.allclose(d_sums.sum(0).double(), inputs[1].grad, atol=1e-4)


def test_gradients_that_are_expanded_are_read_as_what_they_are():
    """As those of a sum are; a copy of them has to live for as long as the kernel reads it."""
    rows, ids, nothing = kernels.padded(3000), torch.zeros(1, 3000, dtype=torch.int64), Dropout.of(0.0)
    d_output, d_rounded = torch.full((1, 1), 2.0), torch.full((1, 1), 0.5, dtype=torch.bfloat16)
    d_table = torch.zeros(1, WIDTH)
    wide = [each.expand(rows, WIDTH) for each in (d_output, d_rounded)]
    kernels.embed_backward(*wide, ids, -1, 1.0, nothing, d_table, None)
    assert d_table.eq(3000 * 2.5).all()
    found = kernels.add_norm_backward(
        *wide, torch.ones(rows, WIDTH).bfloat16(), torch.ones(3000), nothing, torch.ones(WIDTH)
    )
    assert found[3].eq(3000 * 2.5).all()


@pytest.mark.parametrize("given", ["both", "output", "rounded"])
def test_add_and_norm_and_its_gradients(dropout, given):
    states, sublayer = matrix().float() * 3, matrix()
    gain, bias = torch.randn(WIDTH), torch.randn(WIDTH)
    found = kernels.add_norm(states, sublayer, dropout, gain, bias, 1e-5, ROWS)
    inputs = exact(states), exact(sublayer), exact(gain, WIDTH), exact(bias, WIDTH)
    mask = mask_of(dropout, ROWS, WIDTH)
    wanted = layer_norm(inputs[0] + inputs[1] * mask, [WIDTH], *inputs[2:], 1e-5)
    assert torch.allclose(found.output[:ROWS].double(), wanted, atol=1e-5)
    assert torch.equal(found.rounded[:ROWS], found.output[:ROWS].bfloat16())
    assert not found.rounded[ROWS:].any()
    d_output = None if given == "rounded" else matrix().float()
    d_rounded = None if given == "output" else matrix()
    wanted.backward(sum(exact(each) for each in (d_output, d_rounded) if each is not None))
    d_states, d_sublayer, d_gain, d_bias, d_last_bias = kernels.add_norm_backward(
        d_output, d_rounded, found.normed, found.rstd, dropout, gain
    )
    for gradient, each in zip((d_states, d_sublayer, d_gain, d_bias), inputs, strict=True):
        assert_rounded(gradient, each.grad)
    assert_rounded(d_last_bias, inputs[1].grad.sum(0))
    assert not d_sublayer[ROWS:].any()


def test_relu_with_dropout_and_its_gradient(dropout):
    states, d_output = matrix().nan_to_num(), matrix().nan_to_num()
    inputs, mask = exact(states, len(states)), mask_of(dropout, len(states), WIDTH)
    wanted = inputs.relu() * mask
    wanted.backward(d_output.double())
    output = kernels.relu_(states, dropout)
    assert_rounded(output, wanted)
    sums = kernels.relu_backward_(d_output, output, dropout)
    assert_rounded(d_output, inputs.grad)
    assert_rounded(sums, inputs.grad.sum(0))


def test_rows_are_added_up_in_float32():
    values = torch.ones(kernels.padded(1000), WIDTH, dtype=torch.bfloat16)  # bfloat16 has no 257
    assert kernels.sum_of_rows(values).eq(1024).all()


@pytest.mark.parametrize(
    ("queries", "keys", "widths", "is_causal"),
    [(13, 13, (16, 32), True), (5, 21, (32, 16), False), (17, 9, (64, 64), False), (33, 33, (16, 16), True)],
)
def test_attention_and_its_gradients(dropout, queries, keys, widths, is_causal):
    batch, heads, (d_k, d_v) = 3, 2, widths
    query = matrix(batch * queries, heads * d_k)
    product = matrix(batch * keys, heads * (d_k + d_v))  # keys and values are columns of one matrix
    projected = Projected(query, *product.split([heads * d_k, heads * d_v], dim=1))
    shape = Shape(batch, heads, queries, keys, d_k, d_v, query.stride(0), product.stride(0))
    mask = torch.ones(batch, keys, dtype=torch.bool)
    mask[0, :2] = mask[1, -3:] = is_causal  # otherwise padding

    def split(values, length):
        return exact(values, batch * length).unflatten(0, (batch, length)).unflatten(2, (heads, -1)).transpose(1, 2)

    inputs = [split(values, length) for values, length in zip(projected, (queries, keys, keys), strict=True)]
    for each in inputs:
        each.retain_grad()
    scores = inputs[0] @ inputs[1].transpose(2, 3) / d_k**0.5
    scores = scores.masked_fill(~mask[:, None, None], -torch.inf)
    if is_causal:
        scores = scores.masked_fill(torch.ones(queries, keys).triu(1).bool(), -torch.inf)
    weights = scores.softmax(-1)
    columns = -(-queries // 16) * 16
    kept = mask_of(dropout, batch * heads * keys, columns).unflatten(0, (batch, heads, keys))[..., :queries]
    wanted = ((weights * kept.transpose(2, 3)) @ inputs[2]).transpose(1, 2).flatten(2).flatten(0, 1)

    output, found = kernels.attention(projected, shape, mask, is_causal, dropout)
    assert_rounded(output, wanted)
    assert not output[batch * queries :].any()
    assert_rounded(found.unflatten(0, (batch, heads, keys))[..., :queries], weights.transpose(2, 3))
    d_output = matrix(batch * queries, heads * d_v)
    wanted.backward(exact(d_output, batch * queries))
    d_query, d_product = torch.zeros_like(query), torch.zeros_like(product)
    into = Projected(d_query, *d_product.split([heads * d_k, heads * d_v], dim=1))
    kernels.attention_backward(projected, shape, found, d_output, dropout, into)
    for gradient, each in zip(into, inputs, strict=True):
        assert_rounded(gradient, each.grad.transpose(1, 2).flatten(2).flatten(0, 1))


def test_a_causal_query_does_not_see_what_comes_later():
    product, shape = matrix(9, 48).nan_to_num(), Shape(1, 1, 9, 9, 16, 16, 48, 48)
    projected = Projected(*product.split(16, dim=1))
    before, _ = kernels.attention(projected, shape, None, True, Dropout.of(0.0))
    product[6:, 16:] += 1
    after, _ = kernels.attention(projected, shape, None, True, Dropout.of(0.0))
    assert torch.equal(before[:6], after[:6])
    assert not torch.equal(before[6:9], after[6:9])


def softmax_minus_target(logits, labels, nll_weight):
    sums = torch.full((2, len(logits)), torch.nan)
    kernels.softmax_minus_target_(logits, labels, nll_weight, *sums)
    return sums


@pytest.mark.parametrize("types", [16, 37, 8000])
def test_logits_become_the_gradient_of_the_smoothed_cross_entropy(types):
    logits, labels = (torch.randn(ROWS, types) * 4).bfloat16(), torch.randint(types, (ROWS,))
    labels[0] = types - 1
    logits[1, 3] = 60.0  # all others underflow
    scores = exact(logits)
    nll = scores.logsumexp(-1) - scores.gather(1, labels[:, None])[:, 0]
    (scores.logsumexp(-1) + 0.9 * (nll - scores.logsumexp(-1))).sum().backward()
    wanted = scores.logsumexp(-1).detach()
    logsumexps, target_logits = softmax_minus_target(logits, labels, 0.9)
    assert torch.allclose(logsumexps.double(), wanted, rtol=1e-6)
    assert torch.equal(target_logits.double(), scores.detach().gather(1, labels[:, None])[:, 0])
    assert torch.allclose(logits.double(), scores.grad, rtol=2**-8, atol=1e-30)


def test_without_a_label_all_is_zero():
    logits = torch.full((2, 20), torch.nan).bfloat16()
    logits[1] = 0
    sums = softmax_minus_target(logits, torch.tensor([-100, 3]), 0.5)
    assert not sums[:, 0].any()
    assert not logits[0].any()
    assert logits[1].sum() == 0.5


def test_what_is_no_number_stays_none():
    """An update whose loss is not finite is skipped: no kernel may hide that."""
    nothing, labels = Dropout.of(0.0), torch.zeros(2, dtype=torch.int64)
    for value in (torch.nan, torch.inf):
        logits = torch.zeros(2, 40).bfloat16()
        logits[1, 20] = value
        assert softmax_minus_target(logits, labels, 0.9)[0].isfinite().tolist() == [True, False]
        sublayer = torch.randn(64, 16).bfloat16()
        sublayer[1, 3] = value
        found = kernels.add_norm(torch.randn(64, 16), sublayer, nothing, torch.ones(16), torch.ones(16), 1e-5, 64)
        assert found.output.isnan().all(1).tolist() == [row == 1 for row in range(64)]
    product = torch.randn(64, 48).bfloat16()
    product[:4, 0] = torch.nan
    shape = Shape(2, 1, 4, 4, 16, 16, 48, 48)
    output, _ = kernels.attention(Projected(*product.split(16, dim=1)), shape, None, False, nothing)
    assert output[:4].isnan().all()
    assert output[4:].isfinite().all()


def test_it_is_the_same_with_any_number_of_threads():
    def all_of_it(threads):
        kernels.library().omp_set_num_threads(threads)
        torch.manual_seed(0)
        dropout, shape = Dropout.of(0.1), Shape(5, 2, 14, 14, 16, 16, 96, 96)
        product = torch.randn(128, 96).bfloat16()
        output, weights = kernels.attention(Projected(*product.split(32, dim=1)), shape, None, True, dropout)
        found = kernels.add_norm(torch.randn(128, 32), output, dropout, torch.ones(32), torch.ones(32), 1e-5, 70)
        sums = kernels.add_norm_backward(found.output, None, found.normed, found.rstd, dropout, torch.ones(32))[2]
        return output, weights, found.output[:70], sums

    try:
        for alone, together in zip(all_of_it(1), all_of_it(3), strict=True):
            assert torch.allclose(alone.float(), together.float(), rtol=1e-5, atol=1e-5)
    finally:
        kernels.library().omp_set_num_threads(torch.get_num_threads())


@pytest.mark.parametrize(
    ("compiler", "said"),
    [
        ("no-such-compiler", r".*No such file or directory: 'no-such-compiler'"),
        ("false", "it ends with status 1"),
        ("cc --no-such-flag", ".*no-such-flag"),
    ],
)
def test_without_a_compiler_there_is_one_sentence(monkeypatch, compiler, said):
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(CannotCompile, match=f"^they cannot be compiled by {compiler}: {said}"):
        kernels.library.__wrapped__()
