"""Triton's kernels for what lies between the products, for rows that stand one after another.

A head's columns stand side by side, and queries, keys and values may be columns of a wider matrix. Their numbers are
multiples of `packing.BLOCK`. Sums are in float32.
"""

import triton
import triton.language as tl


LOG2_E = tl.constexpr(1.4426950408889634)
NEVER = tl.constexpr(-1e30)  # the score of a key that a query does not see


@triton.jit
def read(pointer, rows, stride, columns, inside):
    """Read some columns of some rows; zeros outside."""
    return tl.load(pointer + rows[:, None].to(tl.int64) * stride + columns[None, :], mask=inside[:, None], other=0.0)


@triton.jit
def write(pointer, rows, stride, columns, values):
    """Write some columns of some rows."""
    tl.store(pointer + rows[:, None].to(tl.int64) * stride + columns[None, :], values.to(pointer.dtype.element_ty))


@triton.jit
def attend(
    query_ptr, key_ptr, value_ptr, output_ptr, logsumexp_ptr, first_key_ptr, end_key_ptr, query_rows, key_rows,
    query_stride, key_stride, value_stride, SCALE: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Compute attention of a block of queries in a head, and the binary logarithms of its softmax's sums."""
    block, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    queries = block * QUERIES + tl.arange(0, QUERIES)
    columns = head * WIDTH + tl.arange(0, WIDTH)
    value_columns = head * VALUE_WIDTH + tl.arange(0, VALUE_WIDTH)
    query = read(query_ptr, queries, query_stride, columns, queries < query_rows)
    first, end = tl.load(first_key_ptr + queries), tl.load(end_key_ptr + queries)
    highest = tl.full([QUERIES], NEVER, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    output = tl.zeros([QUERIES, VALUE_WIDTH], tl.float32)
    lowest, stop = tl.load(first_key_ptr + block * QUERIES), tl.load(end_key_ptr + (block + 1) * QUERIES - 1)
    for start in range(lowest, stop, KEYS):
        keys = start + tl.arange(0, KEYS)
        key = read(key_ptr, keys, key_stride, columns, keys < key_rows)
        value = read(value_ptr, keys, value_stride, value_columns, keys < key_rows)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * (SCALE * LOG2_E)
        sees = (keys[None, :] >= first[:, None]) & (keys[None, :] < end[:, None])
        scores = tl.where(sees, scores, NEVER)
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.where(sees, tl.exp2(scores - higher[:, None]), 0.0)
        shrunk = tl.exp2(highest - higher)
        total = total * shrunk + tl.sum(weights, 1)
        output = output * shrunk[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        highest = higher
    write(output_ptr, queries, heads * VALUE_WIDTH, value_columns, output / total[:, None])
    tl.store(logsumexp_ptr + head * query_rows + queries, highest + tl.log2(total))


@triton.jit
def attend_backward_queries(
    query_ptr, key_ptr, value_ptr, output_ptr, d_output_ptr, logsumexp_ptr, product_ptr, d_query_ptr, d_bias_ptr,
    first_key_ptr, end_key_ptr, query_rows, key_rows, query_stride, key_stride, value_stride, d_query_stride,
    SCALE: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a block of queries in a head, and the products of output and its gradient by row.

    Of the gradient of the queries' bias, the share of the block.
    """
    block, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    queries = block * QUERIES + tl.arange(0, QUERIES)
    columns = head * WIDTH + tl.arange(0, WIDTH)
    value_columns = head * VALUE_WIDTH + tl.arange(0, VALUE_WIDTH)
    here = queries < query_rows
    query = read(query_ptr, queries, query_stride, columns, here)
    output = read(output_ptr, queries, heads * VALUE_WIDTH, value_columns, here)
    d_output = read(d_output_ptr, queries, heads * VALUE_WIDTH, value_columns, here)
    logsumexp = tl.load(logsumexp_ptr + head * query_rows + queries)
    product = tl.sum(output.to(tl.float32) * d_output.to(tl.float32), 1)
    tl.store(product_ptr + head * query_rows + queries, product)
    first, end = tl.load(first_key_ptr + queries), tl.load(end_key_ptr + queries)
    d_query = tl.zeros([QUERIES, WIDTH], tl.float32)
    lowest, stop = tl.load(first_key_ptr + block * QUERIES), tl.load(end_key_ptr + (block + 1) * QUERIES - 1)
    for start in range(lowest, stop, KEYS):
        keys = start + tl.arange(0, KEYS)
        key = read(key_ptr, keys, key_stride, columns, keys < key_rows)
        value = read(value_ptr, keys, value_stride, value_columns, keys < key_rows)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * (SCALE * LOG2_E)
        sees = (keys[None, :] >= first[:, None]) & (keys[None, :] < end[:, None])
        weights = tl.where(sees, tl.exp2(scores - logsumexp[:, None]), 0.0)
        d_weights = tl.dot(d_output, tl.trans(value), input_precision="ieee")
        d_scores = weights * (d_weights - product[:, None])
        d_query += tl.dot(d_scores.to(key.dtype), key, input_precision="ieee")
    write(d_query_ptr, queries, d_query_stride, columns, d_query * SCALE)
    tl.store(d_bias_ptr + block * heads * WIDTH + columns, tl.sum(d_query, 0) * SCALE)


@triton.jit
def attend_backward_keys(
    query_ptr, key_ptr, value_ptr, d_output_ptr, logsumexp_ptr, product_ptr, d_key_ptr, d_value_ptr, d_bias_ptr,
    first_key_ptr, end_key_ptr, first_query_ptr, end_query_ptr, query_rows, key_rows, query_stride, key_stride,
    value_stride, d_key_stride, d_value_stride, SCALE: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a block of keys and values in a head; the other kernel must have run before.

    Of the gradient of the values' bias, the share of the block; the keys' bias has none.
    """
    block, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    keys = block * KEYS + tl.arange(0, KEYS)
    columns = head * WIDTH + tl.arange(0, WIDTH)
    value_columns = head * VALUE_WIDTH + tl.arange(0, VALUE_WIDTH)
    key = read(key_ptr, keys, key_stride, columns, keys < key_rows)
    value = read(value_ptr, keys, value_stride, value_columns, keys < key_rows)
    d_key = tl.zeros([KEYS, WIDTH], tl.float32)
    d_value = tl.zeros([KEYS, VALUE_WIDTH], tl.float32)
    lowest, stop = tl.load(first_query_ptr + block * KEYS), tl.load(end_query_ptr + (block + 1) * KEYS - 1)
    for start in range(lowest, stop, QUERIES):
        queries = start + tl.arange(0, QUERIES)
        here = queries < query_rows
        query = read(query_ptr, queries, query_stride, columns, here)
        d_output = read(d_output_ptr, queries, heads * VALUE_WIDTH, value_columns, here)
        logsumexp = tl.load(logsumexp_ptr + head * query_rows + queries, mask=here, other=0.0)
        product = tl.load(product_ptr + head * query_rows + queries, mask=here, other=0.0)
        first = tl.load(first_key_ptr + queries, mask=here, other=0)
        end = tl.load(end_key_ptr + queries, mask=here, other=0)
        scores = tl.dot(key, tl.trans(query), input_precision="ieee") * (SCALE * LOG2_E)
        seen = (keys[:, None] >= first[None, :]) & (keys[:, None] < end[None, :])
        weights = tl.where(seen, tl.exp2(scores - logsumexp[None, :]), 0.0)
        d_value += tl.dot(weights.to(d_output.dtype), d_output, input_precision="ieee")
        d_weights = tl.dot(value, tl.trans(d_output), input_precision="ieee")
        d_scores = weights * (d_weights - product[None, :])
        d_key += tl.dot(d_scores.to(query.dtype), query, input_precision="ieee")
    write(d_key_ptr, keys, d_key_stride, columns, d_key * SCALE)
    write(d_value_ptr, keys, d_value_stride, value_columns, d_value)
    tl.store(d_bias_ptr + block * heads * VALUE_WIDTH + value_columns, tl.sum(d_value, 0))


@triton.jit
def scramble(words):
    """Make 32 random-looking bits of 32 others: two multiplications, and each half mixed into the other."""
    words = (words ^ (words >> 16)) * 0x7FEB352D
    words = (words ^ (words >> 15)) * 0x846CA68B
    return words ^ (words >> 16)


@triton.jit
def dropout_scales(seed_ptr, places, P: tl.constexpr):
    """Return for each place 0 with probability `P`, and else 1 / (1 - P), the same ones for the same seed."""
    if P == 0:
        return tl.full(places.shape, 1.0, tl.float32)
    words = scramble(scramble(places.to(tl.uint32)) + tl.load(seed_ptr).to(tl.uint32))
    # 24 bits of them, which float32 holds exactly
    return tl.where((words >> 8).to(tl.float32) >= P * 2**24, 1 / (1 - P), 0.0)


# One seed of many stands anywhere; the others begin at multiples of 16 bytes.
@triton.jit(do_not_specialize_on_alignment=["seed_ptr"])
def add_and_norm(
    states_ptr, output_ptr, gain_ptr, bias_ptr, seed_ptr, normed_ptr, sum_ptr, mean_ptr, rstd_ptr, rows,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, EPS: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Compute LayerNorm(x + Dropout(y)) of a few rows, and keep what its gradients need."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row[:, None] < rows) & (column[None, :] < WIDTH)
    places = row[:, None] * WIDTH + column[None, :]
    output = tl.load(output_ptr + places, mask=inside, other=0.0).to(tl.float32)
    total = tl.load(states_ptr + places, mask=inside, other=0.0).to(tl.float32)
    total += output * dropout_scales(seed_ptr, places, P)
    mean = tl.sum(total, 1) / WIDTH
    apart = tl.where(column[None, :] < WIDTH, total - mean[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(apart * apart, 1) / WIDTH + EPS)
    gain = tl.load(gain_ptr + column, mask=column < WIDTH, other=0.0)
    bias = tl.load(bias_ptr + column, mask=column < WIDTH, other=0.0)
    normed = apart * rstd[:, None] * gain[None, :] + bias[None, :]
    tl.store(normed_ptr + places, normed.to(normed_ptr.dtype.element_ty), mask=inside)
    tl.store(sum_ptr + places, total.to(sum_ptr.dtype.element_ty), mask=inside)
    tl.store(mean_ptr + row, mean, mask=row < rows)
    tl.store(rstd_ptr + row, rstd, mask=row < rows)


@triton.jit(do_not_specialize_on_alignment=["seed_ptr"])
def add_and_norm_backward(
    d_normed_ptr, sum_ptr, mean_ptr, rstd_ptr, gain_ptr, seed_ptr, d_states_ptr, d_output_ptr, d_vectors_ptr, rows,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of every so many rows.

    Of the gradients of gain and bias, and of the bias that the sublayer's output had, the shares of these rows.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, COLUMNS)
    gain = tl.load(gain_ptr + column, mask=column < WIDTH, other=0.0)
    d_gain = tl.zeros([ROWS, COLUMNS], tl.float32)
    d_bias = tl.zeros([ROWS, COLUMNS], tl.float32)
    d_output_bias = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(program * ROWS, rows, programs * ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row[:, None] < rows) & (column[None, :] < WIDTH)
        places = row[:, None] * WIDTH + column[None, :]
        d_normed = tl.load(d_normed_ptr + places, mask=inside, other=0.0).to(tl.float32)
        total = tl.load(sum_ptr + places, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(mean_ptr + row, mask=row < rows, other=0.0)
        rstd = tl.load(rstd_ptr + row, mask=row < rows, other=0.0)
        normal = tl.where(inside, (total - mean[:, None]) * rstd[:, None], 0.0)
        d_gain += d_normed * normal
        d_bias += d_normed
        d_normal = d_normed * gain[None, :]
        along = tl.sum(d_normal * normal, 1) / WIDTH
        d_total = (d_normal - tl.sum(d_normal, 1)[:, None] / WIDTH - normal * along[:, None]) * rstd[:, None]
        tl.store(d_states_ptr + places, d_total.to(d_states_ptr.dtype.element_ty), mask=inside)
        d_output = tl.where(inside, d_total * dropout_scales(seed_ptr, places, P), 0.0)
        d_output_bias += d_output
        tl.store(d_output_ptr + places, d_output.to(d_output_ptr.dtype.element_ty), mask=inside)
    shares = d_vectors_ptr + program * 3 * WIDTH + column
    tl.store(shares, tl.sum(d_gain, 0), mask=column < WIDTH)
    tl.store(shares + WIDTH, tl.sum(d_bias, 0), mask=column < WIDTH)
    tl.store(shares + 2 * WIDTH, tl.sum(d_output_bias, 0), mask=column < WIDTH)


@triton.jit
def relu_backward(
    d_active_ptr, active_ptr, d_bias_ptr, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Let the gradient through where a block was active, in place; of the gradient of the bias, the block's share."""
    block = tl.program_id(0)
    row = block * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row[:, None] < rows) & (column[None, :] < width)
    places = row[:, None].to(tl.int64) * width + column[None, :]
    active = tl.load(active_ptr + places, mask=inside, other=0.0)
    d_active = tl.load(d_active_ptr + places, mask=inside, other=0.0)
    d_active = tl.where(active > 0, d_active, 0.0)
    tl.store(d_active_ptr + places, d_active, mask=inside)
    tl.store(d_bias_ptr + block * width + column, tl.sum(d_active.to(tl.float32), 0), mask=column < width)


@triton.jit
def softmax(logits_ptr, logsumexp_ptr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Replace a row of logits by probabilities, and keep its logsumexp.

    Of a width that it knows, a row is read and written several values at a time.
    """
    row = tl.program_id(0).to(tl.int64)
    highest = tl.full([COLUMNS], NEVER, tl.float32)
    total = tl.zeros([COLUMNS], tl.float32)
    for start in range(0, WIDTH, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        logits = tl.load(logits_ptr + row * WIDTH + column, mask=column < WIDTH, other=NEVER).to(tl.float32)
        higher = tl.maximum(highest, logits)
        total = total * tl.exp2((highest - higher) * LOG2_E) + tl.exp2((logits - higher) * LOG2_E)
        highest = higher
    top = tl.max(highest, 0)
    logsumexp = top + tl.log2(tl.sum(total * tl.exp2((highest - top) * LOG2_E), 0)) / LOG2_E
    tl.store(logsumexp_ptr + row, logsumexp)
    for start in range(0, WIDTH, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        logits = tl.load(logits_ptr + row * WIDTH + column, mask=column < WIDTH, other=NEVER).to(tl.float32)
        probabilities = tl.exp2((logits - logsumexp) * LOG2_E)
        tl.store(logits_ptr + row * WIDTH + column, probabilities.to(logits_ptr.dtype.element_ty), mask=column < WIDTH)
