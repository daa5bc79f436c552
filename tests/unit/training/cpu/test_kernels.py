"""The kernels against PyTorch's own operations in float64, on the values as bfloat16 or float32 has them."""

import ctypes
import shutil

import pytest
import torch
from torch.nn.functional import layer_norm

from training.cpu import kernels
from training.cpu.kernels import Biases, CannotCompile, Dropout, Heads, Projected, Sentences


WIDTH, ROWS = 48, 70  # a matrix has 64, or 128


@pytest.fixture(params=[torch.bfloat16, torch.float32], ids=str)
def dtype(request):
    return request.param


def matrix(dtype, rows=ROWS, width=WIDTH):
    """A random matrix. What stands in the rows behind its own must not matter."""
    values = torch.randn(kernels.padded(rows), width).to(dtype)
    values[rows:] = torch.nan
    return values


def exact(values, rows=ROWS):
    return values[:rows].double().requires_grad_()


def assert_rounded(found, wanted, dtype):
    """All bits of each element but one are right, or of the largest where it is a sum; on the whole all are.

    bfloat16 has eight. Of float32's 24, sums in float32 leave 19.
    """
    error, last = found[: len(wanted)].double() - wanted, 2**-8 if dtype == torch.bfloat16 else 2**-19
    assert (error.abs() <= 2 * last * wanted.abs() + last * wanted.abs().max()).all()
    assert error.norm() <= last * wanted.norm()


def mask_of(dropout, rows, width):
    """What elements are multiplied by, as `embed` shows it of positions that are all one."""
    nothing = torch.zeros(rows, dtype=torch.int64)
    ones = torch.ones(1, width)
    return kernels.embed(nothing, nothing, 0 * ones, ones, 0, 1.0, dropout, torch.bfloat16)[0][:rows].double()


def heads_of(queries, keys, count, *widths):
    """Heads of sentences of such lengths."""
    return Heads(*(Sentences.of(torch.tensor(lengths)) for lengths in (queries, keys)), count, *widths)


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


@pytest.mark.parametrize("count", [1, 3])
def test_a_matrix_and_its_transpose_are_rounded(dtype, count):
    parts = [torch.randn(16, 48), torch.randn(80, 48), torch.randn(32, 48)][:count]
    rounded, transposed = kernels.round_both(parts, dtype)
    assert torch.equal(rounded, torch.cat(parts).to(dtype))
    assert torch.equal(transposed, rounded.T)


def test_bfloat16_is_transposed_into_itself_and_into_float32():
    states = torch.randn(64, 48).bfloat16()
    assert torch.equal(kernels.transpose(states), states.T)
    assert torch.equal(kernels.transpose(states, torch.float32), states.T.float())


@pytest.mark.parametrize("width", [16, WIDTH, 80])
def test_the_gradient_of_a_weight_whichever_side_is_narrower(dtype, width):
    states, d_output = matrix(dtype).nan_to_num(), matrix(dtype, width=width).nan_to_num()
    found = kernels.weight_gradient(states, d_output)
    assert found.dtype == torch.float32
    assert found.is_contiguous()
    assert_rounded(found, d_output.double().T @ states.double(), dtype)


def test_rounded_to_float32_states_are_not_copied():
    for states, rounded in (
        kernels.empty_states(64, 48, torch.float32),
        kernels.add_norm(*torch.randn(2, 64, 48), None, Dropout.of(0.0), torch.ones(48), torch.ones(48), 1e-5, 64)[:2],
    ):
        assert states.data_ptr() == rounded.data_ptr()


@pytest.mark.parametrize("pad", [2, -1])
def test_embeddings_and_their_gradients(dropout, pad, dtype):
    ids, places = torch.randint(0, 9, (ROWS,)), torch.randint(0, 7, (ROWS,))
    table, positions = torch.randn(9, WIDTH), torch.randn(7, WIDTH)
    inputs = exact(table, 9), exact(positions, 7)
    embedded = (inputs[0] * 3)[ids].masked_fill((ids == pad)[..., None], 0)
    mask = mask_of(dropout, ROWS, WIDTH)
    sums = embedded + inputs[1][places]
    sums.retain_grad()
    wanted = sums * mask
    output, rounded = kernels.embed(ids, places, table, positions, pad, 3.0, dropout, dtype)
    assert torch.allclose(output[:ROWS].double(), wanted, atol=1e-6)
    assert torch.equal(rounded[:ROWS], output[:ROWS].to(dtype))
    assert not rounded[ROWS:].any()
    d_output, d_rounded, d_table = matrix(torch.float32), matrix(dtype), torch.ones(9, WIDTH)
    d_sums = torch.empty(ROWS, WIDTH)
    wanted.backward(exact(d_output) + exact(d_rounded))
    for place in (d_sums, None):
        kernels.embed_backward(d_output, d_rounded, ids, pad, 3.0, dropout, d_table, place)
    assert torch.allclose(d_table.double(), 1 + 2 * inputs[0].grad, atol=1e-4)  # added, twice
    assert torch.allclose(d_sums.double(), sums.grad, atol=1e-4)


def test_gradients_that_are_expanded_are_read_as_what_they_are():
    """As those of a sum are; a copy of them has to live for as long as the kernel reads it."""
    rows, ids, nothing = kernels.padded(3000), torch.zeros(3000, dtype=torch.int64), Dropout.of(0.0)
    d_output, d_rounded = torch.full((1, 1), 2.0), torch.full((1, 1), 0.5, dtype=torch.bfloat16)
    d_table = torch.zeros(1, WIDTH)
    wide = [each.expand(rows, WIDTH) for each in (d_output, d_rounded)]
    kernels.embed_backward(*wide, ids, -1, 1.0, nothing, d_table, None)
    assert d_table.eq(3000 * 2.5).all()
    found = kernels.add_norm_backward(
        *wide, torch.ones(rows, WIDTH).bfloat16(), torch.ones(3000), nothing, torch.ones(WIDTH)
    )
    assert found[3].eq(3000 * 2.5).all()


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("given", ["both", "output", "rounded"])
def test_add_and_norm_and_its_gradients(dropout, given, has_bias, dtype):
    states, product = matrix(torch.float32) * 3, matrix(dtype)
    gain, bias, last_bias = torch.randn(3, WIDTH) * torch.tensor([[1], [1], [has_bias]])
    found = kernels.add_norm(states, product, last_bias if has_bias else None, dropout, gain, bias, 1e-5, ROWS)
    inputs = exact(states), exact(product), exact(gain, WIDTH), exact(bias, WIDTH)
    mask = mask_of(dropout, ROWS, WIDTH)
    wanted = layer_norm(inputs[0] + (inputs[1] + last_bias) * mask, [WIDTH], *inputs[2:], 1e-5)
    assert torch.allclose(found.output[:ROWS].double(), wanted, atol=1e-5)
    assert torch.equal(found.rounded[:ROWS], found.output[:ROWS].to(dtype))
    assert not found.rounded[ROWS:].any()
    d_output = None if given == "rounded" else matrix(torch.float32)
    d_rounded = None if given == "output" else matrix(dtype)
    wanted.backward(sum(exact(each) for each in (d_output, d_rounded) if each is not None))
    d_states, d_sublayer, d_gain, d_bias, d_last_bias = kernels.add_norm_backward(
        d_output, d_rounded, found.normed, found.rstd, dropout, gain
    )
    for gradient, each in zip((d_states, d_sublayer, d_gain, d_bias), inputs, strict=True):
        assert_rounded(gradient, each.grad, dtype)
    assert_rounded(d_last_bias, inputs[1].grad.sum(0), dtype)
    assert not d_sublayer[ROWS:].any()


def test_relu_with_dropout_and_its_gradient(dropout, dtype):
    states, d_output = matrix(dtype).nan_to_num(), matrix(dtype).nan_to_num()
    inputs, mask = exact(states, len(states)), mask_of(dropout, len(states), WIDTH)
    wanted = inputs.relu() * mask
    wanted.backward(d_output.double())
    output = kernels.relu_(states, dropout)
    assert_rounded(output, wanted, dtype)
    sums = kernels.relu_backward_(d_output, output, dropout)
    assert_rounded(d_output, inputs.grad, dtype)
    assert_rounded(sums, inputs.grad.sum(0), dtype)


def test_rows_are_added_up_in_float32(dtype):
    values = torch.ones(kernels.padded(1000), WIDTH, dtype=dtype)  # bfloat16 has no 257
    assert kernels.sum_of_rows(values).eq(1024).all()


@pytest.mark.parametrize(
    ("queries", "keys", "widths", "is_causal"),
    [
        ([13, 13, 13], [13, 13, 13], (16, 32), True),
        ([5, 1, 4], [9, 21, 3], (32, 16), False),
        ([17, 2], [9, 8], (64, 64), False),
        ([3, 33, 16, 8], [3, 33, 16, 8], (16, 16), True),
        ([3, 33, 16, 8], [3, 33, 16, 8], (8, 40), True),
        ([5, 1, 4], [9, 21, 3], (24, 3), False),
        ([0, 4, 0], [2, 5, 0], (16, 16), False),
    ],
)
def test_attention_and_its_gradients(dropout, queries, keys, widths, is_causal, dtype):
    count, (d_k, d_v) = 2, widths
    heads = heads_of(queries, keys, count, d_k, d_v)
    query = matrix(dtype, sum(queries), count * d_k)
    product = matrix(dtype, sum(keys), count * (d_k + d_v))  # keys and values are columns of one matrix
    projected = Projected(query, *product.split([count * d_k, count * d_v], dim=1))
    inputs = [exact(values, sum(each)) for values, each in zip(projected, (queries, keys, keys), strict=True)]
    biases = Biases(*(torch.randn(values.shape[1]) / 4 if is_causal else None for values in projected))
    columns = -(-max(queries) // 16) * 16
    kept = mask_of(dropout, len(queries) * count * max(keys), columns).unflatten(0, (len(queries), count, max(keys)))

    def split(values, lengths):  # sentences of (H, T, d)
        return [part.unflatten(1, (count, -1)).transpose(0, 1) for part in values.split(lengths)]

    output, found = kernels.attention(projected, biases, heads, is_causal, dropout)
    found = found.unflatten(0, kept.shape[:3])
    wanted = []
    parts = [
        split(values if bias is None else values + bias, each)
        for values, bias, each in zip(inputs, biases, (queries, keys, keys), strict=True)
    ]
    for sentence, (q, k, v) in enumerate(zip(*parts, strict=True)):
        scores = q @ k.transpose(1, 2) / d_k**0.5
        if is_causal:
            scores = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), -torch.inf)
        weights, mine = scores.softmax(-1), (sentence, slice(None), slice(k.shape[1]), slice(q.shape[1]))
        if weights.numel():
            assert_rounded(found[mine], weights.transpose(1, 2), dtype)
        wanted.append(((weights * kept[mine].transpose(1, 2)) @ v).transpose(0, 1).flatten(1))
    wanted = torch.cat(wanted)
    assert_rounded(output, wanted, dtype)
    assert not output[sum(queries) :].any()
    d_output = matrix(dtype, sum(queries), count * d_v)
    wanted.backward(exact(d_output, sum(queries)))
    d_query, d_product = torch.zeros_like(query), torch.zeros_like(product)
    into = Projected(d_query, *d_product.split([count * d_k, count * d_v], dim=1))
    kernels.attention_backward(projected, biases, heads, found, d_output, dropout, into)
    for gradient, each in zip(into, inputs, strict=True):
        assert_rounded(gradient, each.grad, dtype)


def test_a_causal_query_does_not_see_what_comes_later(dtype):
    product, heads = matrix(dtype, 9, 48).nan_to_num(), heads_of([9], [9], 1, 16, 16)
    projected = Projected(*product.split(16, dim=1))
    before, _ = kernels.attention(projected, Biases(), heads, True, Dropout.of(0.0))
    product[6:, 16:] += 1
    after, _ = kernels.attention(projected, Biases(), heads, True, Dropout.of(0.0))
    assert torch.equal(before[:6], after[:6])
    assert not torch.equal(before[6:9], after[6:9])


def softmax_minus_target(logits, labels, nll_weight):
    sums = torch.full((2, len(logits)), torch.nan)
    kernels.softmax_minus_target_(logits, labels, nll_weight, *sums)
    return sums


@pytest.mark.parametrize("types", [16, 37, 8000])
def test_logits_become_the_gradient_of_the_smoothed_cross_entropy(types, dtype):
    logits, labels = (torch.randn(ROWS, types) * 4).to(dtype), torch.randint(types, (ROWS,))
    labels[0] = types - 1
    logits[1, 3] = 60.0  # all others underflow
    scores = exact(logits)
    nll = scores.logsumexp(-1) - scores.gather(1, labels[:, None])[:, 0]
    (scores.logsumexp(-1) + 0.9 * (nll - scores.logsumexp(-1))).sum().backward()
    wanted = scores.logsumexp(-1).detach()
    logsumexps, target_logits = softmax_minus_target(logits, labels, 0.9)
    assert torch.allclose(logsumexps.double(), wanted, rtol=1e-6)
    assert torch.equal(target_logits.double(), scores.detach().gather(1, labels[:, None])[:, 0])
    rtol, atol = (2**-8, 1e-30) if dtype == torch.bfloat16 else (1e-5, 1e-7)
    assert torch.allclose(logits.double(), scores.grad, rtol=rtol, atol=atol)


@pytest.mark.parametrize("types", [16, 37, 8000])
def test_logits_of_two_predictions_become_the_gradient_with_their_divergence(types, dtype):
    both, labels = (torch.randn(2, 6, types) * 4).to(dtype), torch.randint(types, (6,))
    labels[0] = types - 1
    both[0, 1, 3] = 60.0  # all others underflow
    both[:, 2] = both[0, 2]  # no difference
    labels[4], scores = -100, exact(both)
    scores.data[:, 4] = 0
    logs = scores.log_softmax(-1)
    divergences = ((logs[0].exp() - logs[1].exp()) * (logs[0] - logs[1])).sum(-1) / 2
    target_logits = scores.gather(-1, labels.clamp(min=0).expand(2, -1)[..., None])[..., 0] * (labels >= 0)
    (scores.logsumexp(-1).sum() - 0.9 * target_logits.sum() + 2.5 * divergences.sum()).backward()
    scores.grad[:, 4] = 0
    sums = torch.full((2, 2, 6), torch.nan)
    found = kernels.softmaxes_minus_target_(both.flatten(0, 1), labels, 0.9, *sums, 2.5)
    assert torch.allclose(found.double(), divergences, rtol=1e-5, atol=1e-5)
    assert torch.allclose(sums[0].double(), scores.logsumexp(-1) * (labels >= 0), rtol=1e-6)
    assert torch.equal(sums[1].double(), target_logits)
    assert torch.allclose(both.double(), scores.grad, rtol=2**-7 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)
    assert not both[:, 4].any()


def test_without_a_label_all_is_zero(dtype):
    logits = torch.full((2, 20), torch.nan, dtype=dtype)
    logits[1] = 0
    sums = softmax_minus_target(logits, torch.tensor([-100, 3]), 0.5)
    assert not sums[:, 0].any()
    assert not logits[0].any()
    assert logits[1].sum() == 0.5


def test_what_is_no_number_stays_none(dtype):
    """An update whose loss is not finite is skipped: no kernel may hide that."""
    nothing, labels = Dropout.of(0.0), torch.zeros(2, dtype=torch.int64)
    for value in (torch.nan, torch.inf):
        logits = torch.zeros(2, 40, dtype=dtype)
        logits[1, 20] = value
        assert softmax_minus_target(logits, labels, 0.9)[0].isfinite().tolist() == [True, False]
        sublayer = torch.randn(64, 16).to(dtype)
        sublayer[1, 3] = value
        found = kernels.add_norm(
            torch.randn(64, 16), sublayer, None, nothing, torch.ones(16), torch.ones(16), 1e-5, 64
        )
        assert found.output.isnan().all(1).tolist() == [row == 1 for row in range(64)]
        states = torch.zeros(64, 16, dtype=dtype)
        states[1, 3] = value
        assert kernels.relu_(states, nothing).isfinite().all(1).tolist() == [row != 1 for row in range(64)]
    product = torch.randn(64, 48).to(dtype)
    product[:4, 0] = torch.nan
    heads = heads_of([4, 4], [4, 4], 1, 16, 16)
    output, _ = kernels.attention(Projected(*product.split(16, dim=1)), Biases(), heads, False, nothing)
    assert output[:4].isnan().all()
    assert output[4:8].isfinite().all()


def all_of_it(dtype):
    """What all kernels give for one problem."""
    torch.manual_seed(0)
    dropout, heads = Dropout.of(0.1), heads_of([14] * 5, [14] * 5, 2, 16, 16)
    product = torch.randn(128, 96).to(dtype)
    output, weights = kernels.attention(Projected(*product.split(32, dim=1)), Biases(), heads, True, dropout)
    found = kernels.add_norm(torch.randn(128, 32), output, None, dropout, torch.ones(32), torch.ones(32), 1e-5, 70)
    sums = kernels.add_norm_backward(found.output, None, found.normed, found.rstd, dropout, torch.ones(32))[2]
    d_table, d_product, active = torch.zeros(9, 32), torch.zeros_like(product), product.clone()
    kernels.embed_backward(found.output, found.rounded, torch.arange(70) % 9, 0, 3.0, dropout, d_table, None)
    places = Projected(*product.split(32, dim=1)), Projected(*d_product.split(32, dim=1))
    kernels.attention_backward(places[0], Biases(), heads, weights, found.rounded, dropout, places[1])
    d_bias = kernels.relu_backward_(active, kernels.relu_(product.clone(), dropout), dropout)
    logits = product.clone()
    losses = softmax_minus_target(logits, torch.arange(128) % 96, 0.9)
    gradients = d_table, d_product, active, d_bias, kernels.sum_of_rows(product)
    return output, weights, found.output[:70], sums, *gradients, logits, losses


def assert_same(found, wanted, error=1e-5):
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one.float(), other.float(), rtol=error, atol=error)


def test_it_is_the_same_with_any_number_of_threads(dtype):
    before = torch.get_num_threads()  # torch's OpenMP may be the kernels', too
    try:
        found = []
        for threads in (1, 3):
            kernels.library(dtype).omp_set_num_threads(threads)
            found.append(all_of_it(dtype))
        assert_same(*found)
    finally:
        kernels.library(dtype).omp_set_num_threads(before)


def test_it_is_the_same_with_vectors_of_any_length(monkeypatch, dtype):
    found = []
    # Intel's header, which bfloat16 needs, would define AVX512F again.
    for lanes, flags in ((16, ["-D__AVX512F__"]), (8, ["-U__AVX512F__", "-U__AVX512BF16__"])):
        monkeypatch.setattr(kernels, "FLAGS", [*kernels.FLAGS, "-O1", *flags])  # compiled soon
        library = kernels.library.__wrapped__(dtype)
        monkeypatch.setattr(kernels, "library", lambda dtype, library=library: library)
        found.append(all_of_it(dtype))
        monkeypatch.undo()
        assert ctypes.c_int.in_dll(library, "lanes").value == lanes
    assert_same(*found, error=2**-7 if dtype == torch.bfloat16 else 1e-5)


def test_a_cpu_without_instructions_for_bfloat16_rounds_alike(monkeypatch):
    bits = torch.randint(0x00800000, 0x7F7F0000, (256, 16), dtype=torch.int32)  # any float but the smallest
    bits[0] = 0x3F808000 + torch.arange(16) * 0x10000  # halfway between two
    numbers = bits.view(torch.float32)
    for compiler in ("cc", "cc -U__AVX512BF16__"):
        monkeypatch.setenv("CC", compiler)
        library = kernels.library.__wrapped__(torch.bfloat16)
        rounded, transposed = torch.empty(256, 16, dtype=torch.bfloat16), torch.empty(16, 256, dtype=torch.bfloat16)
        library.round_both(*map(kernels.at, (numbers, rounded, transposed)), 256, 16, 256)
        assert torch.equal(rounded, numbers.bfloat16()), compiler


def test_they_are_compiled_once_for_each_compiler_and_source(monkeypatch, tmp_path):
    monkeypatch.setattr(kernels, "FLAGS", [flag.replace("-O3", "-O0") for flag in kernels.FLAGS])  # compiled soon
    monkeypatch.setattr(kernels, "CACHE", tmp_path / "cache")
    source = tmp_path / "kernels.c"
    shutil.copy(kernels.SOURCE, source)
    monkeypatch.setattr(kernels, "SOURCE", source)

    def libraries_with(dtype=torch.float32, compiler="cc"):
        monkeypatch.setenv("CC", compiler)
        kernels.library.__wrapped__(dtype)
        return {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}

    first = libraries_with()
    assert libraries_with() == first
    assert len(first) == 1
    assert len(libraries_with(torch.bfloat16)) == 2
    assert len(libraries_with(compiler="cc -mno-fma")) == 3  # as on a CPU without these instructions
    source.write_text(f"{source.read_text()}const int another = 1;\n")
    assert len(libraries_with()) == 4
    with pytest.raises(CannotCompile):
        libraries_with(compiler="cc -Dlanes=(")  # it fails behind the preprocessor
    assert len(libraries_with()) == 4


def test_where_nothing_can_be_kept_they_are_compiled_all_the_same(monkeypatch, tmp_path):
    monkeypatch.setattr(kernels, "FLAGS", [flag.replace("-O3", "-O0") for flag in kernels.FLAGS])
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(kernels, "CACHE", tmp_path / "file" / "cache")
    library = kernels.library.__wrapped__(torch.float32)
    monkeypatch.setattr(kernels, "library", lambda dtype: library)
    assert torch.equal(kernels.sum_of_rows(torch.ones(64, 16)), torch.full((16,), 64.0))


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
        kernels.library.__wrapped__(torch.float32)
