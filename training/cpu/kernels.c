/* What lies between the matrix products of a training update, each in one pass over memory: see kernels.py.

   Matrices are row-major, and their widths multiples of 16; those of single heads need not be. Rows beyond `rows`, up
   to `padded`, are set to zero where a product will add up over rows. What is a `number` in memory, bfloat16, or float
   with -DFLOAT32, is float in registers. */

#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

/* How many floats a vector has; how many rows of a product are computed together, or the last HALF of them, and how
   many vectors of each: as many sums as there are registers for. GCC makes slow code of vectors longer than these. */
#ifdef __AVX512F__
#define LANES 16
#define BLOCK 8
#else
#define LANES 8
#define BLOCK 4
#endif
#define HALF 4
#define VECTORS 2
#define COLUMNS 16 /* the number of a head's columns of scores is a multiple of it, on every CPU */
#define HIDDEN -1e30f

const int lanes = LANES; /* so that a test can tell which it has */

typedef int64_t size;
typedef float floats __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t ints __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint32_t words __attribute__((vector_size(4 * LANES), aligned(4)));
#ifdef FLOAT32
typedef float number;
typedef floats numbers;
typedef ints places_of_numbers;
#define LOWEST -1e30f
#else
typedef uint16_t number;
typedef number numbers __attribute__((vector_size(2 * LANES), aligned(2)));
typedef numbers places_of_numbers;
#define LOWEST 0xf149 /* -1e30 */
#endif

#if LANES == 16
static const ints LANE = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#else
static const ints LANE = {0, 1, 2, 3, 4, 5, 6, 7};
#endif

static inline floats load(const float *from) { return *(const floats *)from; }
static inline void store(float *to, floats x) { *(floats *)to = x; }
static inline void increase(float *sum, floats x) { store(sum, load(sum) + x); }
/* LANES elements, or the first `count` of them and zeros. */
static inline numbers some(const number *from, size count) {
    if (count >= LANES) return *(const numbers *)from;
    numbers x = {0};
    memcpy(&x, from, count * sizeof(number));
    return x;
}
#ifdef FLOAT32
static inline floats widen(const number *from) { return load(from); }
static inline float widen_one(number x) { return x; }
static inline void narrow(number *to, floats x) { store(to, x); }
#else
static inline floats widen(const number *from) {
    return (floats)(__builtin_convertvector(*(const numbers *)from, words) << 16);
}
static inline float widen_one(number x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline void narrow(number *to, floats x) { /* to the nearest, of two to the even one */
#if defined(__AVX512BF16__) && LANES == 16
    *(numbers *)to = (numbers)_mm512_cvtneps_pbh((__m512)x);
#else
    words bits = (words)x;
    *(numbers *)to = __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, numbers);
#endif
}
#endif
static inline floats all(float x) { return x - (floats){0}; }
static inline floats either(ints condition, floats x, floats y) {
    return (floats)((condition & (ints)x) | (~condition & (ints)y));
}
static inline floats larger(floats x, floats y) { return either(y > x, y, x); }
static inline float sum_of(floats x) {
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
}
static inline float max_of(floats x) {
    float max = x[0];
    for (int i = 1; i < LANES; i++) max = x[i] > max ? x[i] : max;
    return max;
}
/* For arrays on the stack, so that no vector crosses a line of the cache. */
#define ALIGNED __attribute__((aligned(64)))
static inline size up(size n, size multiple) { return (n + multiple - 1) / multiple * multiple; }

/* e^x for x <= 0, to 3e-7 of it: 2^n e^r with |r| <= ln(2) / 2. */
static inline floats exponential(floats x) {
    x = either(x < -87.0f, all(-87.0f), x);
    floats shifted = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: leaves n in the last bits */
    floats n = shifted - 12582912.0f;
    floats r = x - n * 0.693145752f - n * 1.42860677e-6f;
    floats power = 0.0416654244f + r * (0.00833345f + r * 0.00139f);
    power = 1 + r * (1 + r * (0.5f + r * (0.166666567f + r * power)));
    return power * (floats)(((ints)shifted + 127) << 23);
}

/* Transpose a square of LANES rows: log2(LANES) times, rows of its upper and lower half are shuffled together. */
#ifdef __clang__
#define SHUFFLE(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define SHUFFLE(x, y, ...) __builtin_shuffle(x, y, (places_of_numbers){__VA_ARGS__})
#endif
#if LANES == 16
#define FIRST_HALVES(x, y) SHUFFLE(x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define LAST_HALVES(x, y) SHUFFLE(x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#else
#define FIRST_HALVES(x, y) SHUFFLE(x, y, 0, 8, 1, 9, 2, 10, 3, 11)
#define LAST_HALVES(x, y) SHUFFLE(x, y, 4, 12, 5, 13, 6, 14, 7, 15)
#endif
typedef numbers square[LANES];
static inline void transpose_square(square x) {
    for (int times = LANES; times > 1; times /= 2) {
        square y;
        for (int i = 0; i < LANES / 2; i++) {
            numbers upper = x[i], lower = x[i + LANES / 2];
            y[2 * i] = FIRST_HALVES(upper, lower);
            y[2 * i + 1] = LAST_HALVES(upper, lower);
        }
        memcpy(x, y, sizeof(square));
    }
}

/* Dropout of section 5.4 as a function of a seed and of an element's number, so that backward needs no mask. */
typedef struct {
    uint32_t threshold; /* p * 2^32 */
    float scale;        /* 1 / (1 - p) */
    uint64_t seed;
} dropout;

/* Return for LANES elements what each is multiplied by: 0 or the scale. */
static inline floats kept(dropout d, uint32_t first) {
    words hash = ((words)LANE + first) * 0x9E3779B9u + (uint32_t)d.seed;
    hash = ((hash ^ (hash >> 16)) * 0x85EBCA6Bu) ^ (uint32_t)(d.seed >> 32);
    hash = (hash ^ (hash >> 13)) * 0xC2B2AE35u;
    hash ^= hash >> 16;
    return (floats)((hash >= d.threshold) & (ints)all(d.scale));
}

/* Round a matrix, and its transpose, whose rows are `stride` apart. Rows and width are multiples of 16. */
void round_both(const float *x, number *rounded, number *transposed, size rows, size width, size stride) {
#pragma omp parallel for
    for (size row = 0; row < rows; row += LANES)
        for (size i = 0; i < width; i += LANES) {
            square values;
            for (int n = 0; n < LANES; n++) {
                number *to = rounded + (row + n) * width + i;
                narrow(to, load(x + (row + n) * width + i));
                values[n] = *(numbers *)to;
            }
            transpose_square(values);
            for (int n = 0; n < LANES; n++) *(numbers *)(transposed + (i + n) * stride + row) = values[n];
        }
}

/* Transpose a matrix, into numbers or into floats: one of both is NULL. Rows and width are multiples of 16. */
void transpose_rounded(const number *x, number *transposed, float *widened, size rows, size width) {
#pragma omp parallel for
    for (size i = 0; i < width; i += LANES)
        for (size row = 0; row < rows; row += LANES) {
            square values;
            for (int n = 0; n < LANES; n++) values[n] = *(numbers *)(x + (row + n) * width + i);
            transpose_square(values);
            for (int n = 0; n < LANES; n++) {
                size to = (i + n) * rows + row;
                if (transposed) *(numbers *)(transposed + to) = values[n];
                else store(widened + to, widen((number *)&values[n]));
            }
        }
}

static void clear(number *matrix, size rows, size padded, size width) {
    memset(matrix + rows * width, 0, (padded - rows) * width * sizeof(number));
}

/* Sums for each thread, which `add_up` adds up and frees. No two threads write to one line of a cache, or to its
   neighbour. */
#define APART(width) (up(width, 32) + 32)
static float *make_sums(size width) {
    size bytes = omp_get_max_threads() * APART(width) * sizeof(float);
    return memset(aligned_alloc(128, bytes), 0, bytes);
}
static inline float *my_sums(float *sums, size width) { return sums + omp_get_thread_num() * APART(width); }
static void add_up(float *sums, size width, float *total) {
    memset(total, 0, width * sizeof(float));
    for (int thread = 0; thread < omp_get_max_threads(); thread++)
        for (size i = 0; i < width; i++) total[i] += sums[thread * APART(width) + i];
    free(sums);
}

/* y = Dropout(scale * embedding + position), sections 3.4, 3.5 and 5.4, also as numbers. Ids that are `pad` have a
   zero embedding; `places` are those of the ids in their sentences. */
void embed(const int64_t *ids, const int64_t *places, const float *table, const float *positions, int64_t pad,
           float scale, dropout d, float *y, number *y_rounded, size rows, size padded, size width) {
#pragma omp parallel for
    for (size row = 0; row < rows; row++) {
        const float *embedding = table + ids[row] * width, *position = positions + places[row] * width;
        for (size i = 0; i < width; i += LANES) {
            floats value = ids[row] == pad ? (floats){0} : load(embedding + i) * scale;
            value = (value + load(position + i)) * kept(d, row * width + i);
            store(y + row * width + i, value);
            narrow(y_rounded + row * width + i, value);
        }
    }
    clear(y_rounded, rows, padded, width);
}

/* Add the gradient of each row to that of its embedding; each thread has its own embeddings. `dx`, the gradients
   without the scale, may be NULL. */
void embed_backward(const float *dy, const number *dy_rounded, const int64_t *ids, int64_t pad, float scale, dropout d,
                    float *dx, float *dtable, size rows, size width) {
#pragma omp parallel
    for (size row = 0; row < rows; row++) {
        if (ids[row] % omp_get_num_threads() != omp_get_thread_num()) continue;
        for (size i = 0; i < width; i += LANES) {
            size at = row * width + i;
            floats g = (load(dy + at) + widen(dy_rounded + at)) * kept(d, at);
            if (dx) store(dx + at, g);
            if (ids[row] != pad) increase(dtable + ids[row] * width + i, g * scale);
        }
    }
}

/* y = LayerNorm(x + Dropout(product + last_bias)), sections 3.1 and 5.4, also as numbers. `last_bias` may be NULL.
   `normed` is y before gain and bias, `rstds` is 1 / standard deviation: backward needs them. */
void add_norm(const float *x, const number *product, const float *last_bias, dropout d, const float *gain,
              const float *bias, float eps, float *y, number *y_rounded, number *normed, float *rstds, size rows,
              size padded, size width) {
#pragma omp parallel for
    for (size row = 0; row < rows; row++) {
        size first = row * width;
        float added[width] ALIGNED;
        floats sum = {0}, squares = {0};
        for (size i = 0; i < width; i += LANES) {
            floats sublayer = widen(product + first + i);
            if (last_bias) sublayer += load(last_bias + i);
            floats value = load(x + first + i) + sublayer * kept(d, first + i);
            store(added + i, value);
            sum += value;
        }
        float mean = sum_of(sum) / width;
        for (size i = 0; i < width; i += LANES) {
            floats centered = load(added + i) - mean;
            squares += centered * centered;
        }
        float rstd = rstds[row] = 1 / sqrtf(sum_of(squares) / width + eps);
        for (size i = 0; i < width; i += LANES) {
            floats value = (load(added + i) - mean) * rstd;
            narrow(normed + first + i, value);
            value = value * load(gain + i) + load(bias + i);
            store(y + first + i, value);
            narrow(y_rounded + first + i, value);
        }
    }
    clear(y_rounded, rows, padded, width);
}

static inline floats gradient(const float *dy, const number *dy_rounded, size at) {
    floats g = dy ? load(dy + at) : (floats){0};
    return dy_rounded ? g + widen(dy_rounded + at) : g;
}

/* The gradients of `add_norm`. Either of `dy` and `dy_rounded` may be NULL. `sums` are the gradients of the gain, of
   the bias, and of the last bias, which is the sum of the rows of `dsublayer`. Some rows are added up in registers
   before the sums in memory are increased: on a shared machine, storing three sums for each element takes longest. */
#define TOGETHER 8
void add_norm_backward(const float *dy, const number *dy_rounded, const number *normed, const float *rstds, dropout d,
                       const float *gain, float *dx, number *dsublayer, float *sums, size rows, size padded,
                       size width) {
    float *all_sums = make_sums(3 * width);
#pragma omp parallel
    {
        float *of_gain = my_sums(all_sums, 3 * width), *of_bias = of_gain + width, *of_sublayer = of_bias + width;
#pragma omp for
        for (size start = 0; start < rows; start += TOGETHER) {
            size end = start + TOGETHER < rows ? start + TOGETHER : rows;
            for (size row = start; row < end; row++) {
                size first = row * width;
                floats sum = {0}, slope = {0};
                for (size i = 0; i < width; i += LANES) {
                    floats g = gradient(dy, dy_rounded, first + i) * load(gain + i);
                    sum += g;
                    slope += g * widen(normed + first + i);
                }
                float mean = sum_of(sum) / width, mean_slope = sum_of(slope) / width;
                for (size i = 0; i < width; i += LANES) {
                    size at = first + i;
                    floats g = gradient(dy, dy_rounded, at) * load(gain + i);
                    g = (g - mean - widen(normed + at) * mean_slope) * rstds[row];
                    store(dx + at, g);
                    narrow(dsublayer + at, g * kept(d, at));
                }
            }
            for (size i = 0; i < width; i += LANES) {
                floats for_gain = {0}, for_bias = {0}, for_sublayer = {0};
                for (size at = start * width + i; at < end * width; at += width) {
                    floats g = gradient(dy, dy_rounded, at);
                    for_gain += g * widen(normed + at);
                    for_bias += g;
                    for_sublayer += widen(dsublayer + at);
                }
                increase(of_gain + i, for_gain);
                increase(of_bias + i, for_bias);
                increase(of_sublayer + i, for_sublayer);
            }
        }
    }
    clear(dsublayer, rows, padded, width);
    add_up(all_sums, 3 * width, sums);
}

/* x becomes Dropout(max(0, x)): Eq. 2 of section 3.3. */
void relu(number *x, dropout d, size rows, size width) {
#pragma omp parallel for
    for (size at = 0; at < rows * width; at += LANES) {
        floats value = widen(x + at);
        value = either(value < 0, (floats){0}, value);
        narrow(x + at, d.threshold ? value * kept(d, at) : value);
    }
}

/* dy, of an output y of `relu`, becomes dx, whose rows are added up. */
void relu_backward(number *dy, const number *y, float scale, float *sums, size rows, size width) {
    float *all_sums = make_sums(width);
#pragma omp parallel
    {
        float *mine = my_sums(all_sums, width);
#pragma omp for
        for (size row = 0; row < rows; row++)
            for (size i = 0; i < width; i += LANES) {
                size at = row * width + i;
                floats g = either(widen(y + at) > 0, widen(dy + at) * scale, (floats){0});
                narrow(dy + at, g);
                increase(mine + i, g);
            }
    }
    add_up(all_sums, width, sums);
}

/* The sums of the columns of x. */
void column_sums(const number *x, float *sums, size rows, size width) {
    float *all_sums = make_sums(width);
#pragma omp parallel
    {
        float *mine = my_sums(all_sums, width);
#pragma omp for
        for (size row = 0; row < rows; row++)
            for (size i = 0; i < width; i += LANES) increase(mine + i, widen(x + row * width + i));
    }
    add_up(all_sums, width, sums);
}

/* Inlined, so that the numbers in a call become constants. */
#define INLINE static inline __attribute__((always_inline))

/* c(m, n) = sum over k of a(m, k) b(k, n), for R rows and N columns, a multiple of LANES. */
INLINE void multiply_rows(int R, const float *a, size a_m, size a_k, const float *b, float *c, size N, size K) {
    size n = 0;
    for (; n + VECTORS * LANES <= N; n += VECTORS * LANES) {
        floats sums[BLOCK][VECTORS] = {0};
        for (size k = 0; k < K; k++)
            for (int m = 0; m < R; m++)
                for (int j = 0; j < VECTORS; j++)
                    sums[m][j] += a[m * a_m + k * a_k] * load(b + k * N + n + j * LANES);
        for (int m = 0; m < R; m++)
            for (int j = 0; j < VECTORS; j++) store(c + m * N + n + j * LANES, sums[m][j]);
    }
    for (; n < N; n += LANES) {
        floats sums[BLOCK] = {0};
        for (size k = 0; k < K; k++)
            for (int m = 0; m < R; m++) sums[m] += a[m * a_m + k * a_k] * load(b + k * N + n);
        for (int m = 0; m < R; m++) store(c + m * N + n, sums[m]);
    }
}
/* The same for M rows, rounded up to a multiple of HALF. */
INLINE void multiply(const float *a, size a_m, size a_k, const float *b, float *c, size M, size N, size K) {
    size m = 0;
    for (; m + HALF < M; m += BLOCK) multiply_rows(BLOCK, a + m * a_m, a_m, a_k, b, c + m * N, N, K);
    if (m < M) multiply_rows(HALF, a + m * a_m, a_m, a_k, b, c + m * N, N, K);
}

/* Copy a head's rows to floats, with their bias if there is one, and set to zero those up to a multiple of BLOCK, and
   columns up to one of LANES. Ask for the rows of the next head, too: they lie apart, so that the CPU does not foresee
   them. */
static void copy_in(const number *from, size head, size next, size stride, const float *bias, size rows, size width,
                    float *to) {
    size whole = width / LANES * LANES, columns = up(width, LANES);
    for (size row = 0; row < rows; row++) {
        const number *now = from + head + row * stride, *then = from + next + row * stride;
        for (size i = 0; i < whole; i += LANES) {
            floats value = widen(now + i);
            store(to + row * columns + i, bias ? value + load(bias + i) : value);
        }
        for (size i = whole; i < width; i++) to[row * columns + i] = widen_one(now[i]) + (bias ? bias[i] : 0);
        for (size i = width; i < columns; i++) to[row * columns + i] = 0;
        for (size i = 0; i < width; i += 64 / sizeof(number)) __builtin_prefetch(then + i);
    }
    memset(to + rows * columns, 0, (up(rows, BLOCK) - rows) * columns * sizeof(float));
}
static void copy_out(const float *from, size rows, size width, number *to, size stride) {
    size whole = width / LANES * LANES, columns = up(width, LANES);
    for (size row = 0; row < rows; row++) {
        for (size i = 0; i < whole; i += LANES) narrow(to + row * stride + i, load(from + row * columns + i));
        if (whole == width) continue;
        number rest[LANES] ALIGNED;
        narrow(rest, load(from + row * columns + whole));
        memcpy(to + row * stride + whole, rest, (width - whole) * sizeof(number));
    }
}
/* The same, transposed, into a column for each row: `columns` of them, a multiple of LANES. Those beyond `rows` have
   no meaning. */
static void copy_across(const number *from, size head, size next, size stride, const float *bias, size rows,
                        size width, float *to, size columns) {
    for (size i = 0; i < width; i += LANES)
        for (size row = 0; row < columns; row += LANES) {
            square values;
            for (int n = 0; n < LANES; n++) {
                size at = (row + n) * stride + i;
                values[n] = row + n < rows ? some(from + head + at, width - i) : (numbers){0};
                if (row + n < rows) __builtin_prefetch(from + next + at);
            }
            transpose_square(values);
            for (int n = 0; n < LANES; n++) {
                floats value = widen((number *)&values[n]);
                store(to + (i + n) * columns + row, bias && i + n < width ? value + bias[i + n] : value);
            }
        }
}

/* B, H, d_k and d_v; how far apart the rows of queries, and of keys and values, lie; T and S of the longest sentences;
   and the row where each sentence begins, and behind the last one where it ends (B + 1). */
typedef struct {
    size batch, heads, key_width, value_width, query_stride, key_stride, longest_query, longest_key;
    const size *query_starts, *key_starts;
} shape;

/* What attention is of, before their biases, which may be NULL. */
typedef struct {
    const number *query, *key, *value;
    const float *query_bias, *key_bias, *value_bias;
} projected;

/* A head of a sentence: its queries and keys, where the first of them, of its values, outputs and weights are, and the
   biases of its queries and keys, and of its values. */
typedef struct {
    size T, S, query, key, value, output, weights, bias, value_bias;
} place;
static inline size columns_of(size queries) { return up(queries, COLUMNS); }
static inline place place_of(const shape *s, size head) {
    size b = head / s->heads, h = head % s->heads, query = s->query_starts[b], key = s->key_starts[b];
    return (place){
        .T = s->query_starts[b + 1] - query,
        .S = s->key_starts[b + 1] - key,
        .query = query * s->query_stride + h * s->key_width,
        .key = key * s->key_stride + h * s->key_width,
        .value = key * s->key_stride + h * s->value_width,
        .output = (query * s->heads + h) * s->value_width,
        .weights = head * s->longest_key * columns_of(s->longest_query),
        .bias = h * s->key_width,
        .value_bias = h * s->value_width,
    };
}
static inline const float *behind(const float *bias, size first) { return bias ? bias + first : NULL; }
static void copy_keys_and_values(const projected *from, const shape *s, place at, place next, float *K, float *V) {
    const float *key_bias = behind(from->key_bias, at.bias), *value_bias = behind(from->value_bias, at.value_bias);
    copy_in(from->key, at.key, next.key, s->key_stride, key_bias, at.S, s->key_width, K);
    copy_in(from->value, at.value, next.value, s->key_stride, value_bias, at.S, s->value_width, V);
}

/* softmax(Q K^T / sqrt(d_k)) V, Eq. 1 of section 3.2.1, for each sentence and head. Scores are transposed, so that the
   lanes are queries, and a softmax adds up vectors. `weights` (B, H, S, T), S and T those of the longest sentences and
   T up to a multiple of COLUMNS, are those before their dropout. */
void attention(const projected *from, int is_causal, float scaling, dropout d, number *output, number *weights,
               const shape *s, size padded) {
    size d_k = up(s->key_width, LANES), d_v = up(s->value_width, LANES), heads = s->batch * s->heads;
    size out_stride = s->heads * s->value_width;
#pragma omp parallel
    {
        size most_columns = columns_of(s->longest_query), most_rows = up(s->longest_key, BLOCK);
        size room = most_columns * (d_k + d_v + most_rows) + most_rows * (d_k + d_v);
        float *Q_T = aligned_alloc(64, up(room * sizeof(float), 64));
        float *O = Q_T + most_columns * d_k, *P_T = O + most_columns * d_v;
        float *K = P_T + most_columns * most_rows, *V = K + most_rows * d_k;
#pragma omp for
        for (size head = 0; head < heads; head++) {
            place at = place_of(s, head), next = place_of(s, head + 1 < heads ? head + 1 : head);
            size T = at.T, S = at.S, columns = columns_of(T);
            const float *query_bias = behind(from->query_bias, at.bias);
            copy_across(from->query, at.query, next.query, s->query_stride, query_bias, T, s->key_width, Q_T, columns);
            copy_keys_and_values(from, s, at, next, K, V);
            multiply(K, d_k, 1, Q_T, P_T, S, columns, d_k);
            for (size t = 0; t < columns; t += LANES) {
                floats highest = all(HIDDEN), sum = {0};
                for (size i = 0; i < S; i++) {
                    floats score = load(P_T + i * columns + t) * scaling;
                    if (is_causal) score = either(LANE + (int)t < (int)i, all(HIDDEN), score);
                    store(P_T + i * columns + t, score);
                    highest = larger(highest, score);
                }
                for (size i = 0; i < S; i++) {
                    floats score = load(P_T + i * columns + t);
                    floats power = either(score <= HIDDEN / 2, (floats){0}, exponential(score - highest));
                    store(P_T + i * columns + t, power);
                    sum += power;
                }
                floats scale = 1 / sum;
                for (size i = 0; i < S; i++) {
                    size first = at.weights + i * most_columns + t;
                    floats weight = load(P_T + i * columns + t) * scale;
                    narrow(weights + first, weight);
                    store(P_T + i * columns + t, d.threshold ? weight * kept(d, first) : weight);
                }
            }
            multiply(P_T, 1, columns, V, O, T, d_v, S);
            copy_out(O, T, s->value_width, output + at.output, out_stride);
        }
        free(Q_T);
    }
    clear(output, s->query_starts[s->batch], padded, out_stride);
}

/* The gradients of `attention`, with the strides of what they are the gradients of. */
void attention_backward(const projected *from, const number *weights, const number *doutput, float scaling, dropout d,
                        number *dquery, number *dkey, number *dvalue, const shape *s) {
    size d_k = up(s->key_width, LANES), d_v = up(s->value_width, LANES), heads = s->batch * s->heads;
    size out_stride = s->heads * s->value_width;
#pragma omp parallel
    {
        size most_columns = columns_of(s->longest_query), most_rows = up(s->longest_key, BLOCK);
        size room = most_columns * (2 * d_k + 2 * d_v + 2 * most_rows) + most_rows * (2 * d_k + 2 * d_v);
        float *Q = aligned_alloc(64, up(room * sizeof(float), 64)), *dQ = Q + most_columns * d_k;
        float *dO = dQ + most_columns * d_k, *dO_T = dO + most_columns * d_v;
        float *P_T = dO_T + most_columns * d_v, *dP_T = P_T + most_columns * most_rows;
        float *K = dP_T + most_columns * most_rows, *dK = K + most_rows * d_k;
        float *V = dK + most_rows * d_k, *dV = V + most_rows * d_v;
#pragma omp for
        for (size head = 0; head < heads; head++) {
            place at = place_of(s, head), next = place_of(s, head + 1 < heads ? head + 1 : head);
            size T = at.T, S = at.S, columns = columns_of(T);
            const float *query_bias = behind(from->query_bias, at.bias);
            copy_in(from->query, at.query, next.query, s->query_stride, query_bias, T, s->key_width, Q);
            copy_keys_and_values(from, s, at, next, K, V);
            copy_in(doutput, at.output, next.output, out_stride, NULL, T, s->value_width, dO);
            copy_across(doutput, at.output, next.output, out_stride, NULL, T, s->value_width, dO_T, columns);
            multiply(V, d_v, 1, dO_T, dP_T, S, columns, d_v);
            for (size t = 0; t < columns; t += LANES) {
                floats sum = {0};
                for (size i = 0; i < S; i++) {
                    size first = at.weights + i * most_columns + t;
                    floats weight = widen(weights + first), scale = d.threshold ? kept(d, first) : all(1);
                    floats g = load(dP_T + i * columns + t) * scale;
                    store(P_T + i * columns + t, weight * scale);
                    store(dP_T + i * columns + t, g);
                    sum += weight * g;
                }
                for (size i = 0; i < S; i++) {
                    floats weight = widen(weights + at.weights + i * most_columns + t);
                    store(dP_T + i * columns + t, weight * (load(dP_T + i * columns + t) - sum) * scaling);
                }
            }
            multiply(P_T, columns, 1, dO, dV, S, d_v, T);
            multiply(dP_T, columns, 1, Q, dK, S, d_k, T);
            multiply(dP_T, 1, columns, K, dQ, T, d_k, S);
            copy_out(dQ, T, s->key_width, dquery + at.query, s->query_stride);
            copy_out(dK, S, s->key_width, dkey + at.key, s->key_stride);
            copy_out(dV, S, s->value_width, dvalue + at.value, s->key_stride);
        }
        free(Q);
    }
}

/* `weight` at the label, where it is among the LANES types from number i on. */
static inline floats at_label(size i, int64_t label, float weight) {
    return either(LANE + (int)(i - label) == 0, all(weight), (floats){0});
}

/* A row of logits as vectors: the last types of a width that is no multiple of LANES are in `rest`, with types behind
   them whose power is nothing. */
typedef struct {
    number *row, rest[LANES] ALIGNED;
    size types, whole;
} vectors;
static inline vectors vectors_of(number *row, size types) {
    vectors x = {.row = row, .types = types, .whole = types / LANES * LANES};
    for (int i = 0; i < LANES; i++) x.rest[i] = x.whole + i < types ? row[x.whole + i] : LOWEST;
    return x;
}
static inline number *vector_at(vectors *x, size i) { return i < x->whole ? x->row + i : x->rest; }
static inline void write_rest(vectors *x) {
    memcpy(x->row + x->whole, x->rest, (x->types - x->whole) * sizeof(number));
}

/* Write e^logit / e^max of each type to `powers`. Return what they are to be multiplied by, and the logsumexp. */
typedef struct {
    float scale, logsumexp;
} softmax;
static inline softmax softmax_of(vectors *x, float *powers) {
    floats highest = widen(x->rest), sum = {0};
    for (size i = 0; i < x->whole; i += LANES) highest = larger(highest, widen(x->row + i));
    float max = max_of(highest);
    for (size i = 0; i < x->types; i += LANES) {
        floats power = exponential(widen(vector_at(x, i)) - max);
        store(powers + i, power);
        sum += power;
    }
    float total = sum_of(sum);
    return (softmax){1 / total, max + logf(total)};
}
static float *make_powers(size types) { return aligned_alloc(64, up(types * sizeof(float), 64)); }

/* The logits of each row become their softmax, and at its label the softmax - `nll_weight`; without a label, which is
   negative then, zero, as its sums do. */
void softmax_minus_target(number *logits, const int64_t *labels, float nll_weight, float *logsumexps,
                          float *target_logits, size rows, size types) {
#pragma omp parallel
    {
        float *powers = make_powers(types);
#pragma omp for
        for (size n = 0; n < rows; n++) {
            number *row = logits + n * types;
            if (labels[n] < 0) {
                memset(row, 0, types * sizeof(number));
                logsumexps[n] = target_logits[n] = 0;
                continue;
            }
            vectors x = vectors_of(row, types);
            softmax p = softmax_of(&x, powers);
            logsumexps[n] = p.logsumexp;
            target_logits[n] = widen_one(row[labels[n]]);
            for (size i = 0; i < types; i += LANES)
                narrow(vector_at(&x, i), load(powers + i) * p.scale - at_label(i, labels[n], nll_weight));
            write_rest(&x);
        }
        free(powers);
    }
}

/* The same for rows P and, behind them, as many rows Q of the same labels, plus `alpha` times the gradient of their
   divergence. The sums of Q, too, go behind those of P. The divergence is (KL(P || Q) + KL(Q || P)) / 2, Eq. 2 of
   R-Drop. With r = ln P - ln Q it is the sum of (P - Q) r / 2, its gradient by the logits of P is
   (P (r - KL(P || Q)) + P - Q) / 2. */
void softmaxes_minus_target(number *logits, const int64_t *labels, float nll_weight, float alpha, float *logsumexps,
                            float *target_logits, float *divergences, size rows, size types) {
#pragma omp parallel
    {
        float *powers_p = make_powers(types), *powers_q = make_powers(types);
#pragma omp for
        for (size n = 0; n < rows; n++) {
            number *row_p = logits + n * types, *row_q = row_p + rows * types;
            float *logsumexp = logsumexps + n, *target_logit = target_logits + n, half = alpha / 2;
            if (labels[n] < 0) {
                memset(row_p, 0, types * sizeof(number));
                memset(row_q, 0, types * sizeof(number));
                logsumexp[0] = logsumexp[rows] = target_logit[0] = target_logit[rows] = divergences[n] = 0;
                continue;
            }
            target_logit[0] = widen_one(row_p[labels[n]]), target_logit[rows] = widen_one(row_q[labels[n]]);
            vectors of_p = vectors_of(row_p, types), of_q = vectors_of(row_q, types);
            softmax p = softmax_of(&of_p, powers_p), q = softmax_of(&of_q, powers_q);
            logsumexp[0] = p.logsumexp, logsumexp[rows] = q.logsumexp;
            float between = p.logsumexp - q.logsumexp;
            floats sum_p = {0}, sum_q = {0};
            for (size i = 0; i < types; i += LANES) {
                floats r = widen(vector_at(&of_p, i)) - widen(vector_at(&of_q, i)) - between;
                sum_p += load(powers_p + i) * r;
                sum_q += load(powers_q + i) * r;
            }
            float mean_p = sum_of(sum_p) * p.scale, mean_q = sum_of(sum_q) * q.scale;
            divergences[n] = (mean_p - mean_q) / 2;
            for (size i = 0; i < types; i += LANES) {
                number *to_p = vector_at(&of_p, i), *to_q = vector_at(&of_q, i);
                floats r = widen(to_p) - widen(to_q) - between, target = at_label(i, labels[n], nll_weight);
                floats P = load(powers_p + i) * p.scale, Q = load(powers_q + i) * q.scale;
                narrow(to_p, P - target + half * (P * (r - mean_p) + P - Q));
                narrow(to_q, Q - target + half * (Q * (mean_q - r) + Q - P));
            }
            write_rest(&of_p);
            write_rest(&of_q);
        }
        free(powers_p);
        free(powers_q);
    }
}
