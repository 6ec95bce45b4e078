/* What a layer does between its products, a row at a time: residual and norm, rotation, gate. */

#include "elementwise.h"

#define WORTH_THREADS 8192 /* elements; fewer take less time than waking a thread */

/* x += change, where there is one. Returns 1 / sqrt(mean(x^2) + eps) of `width` elements. */
INLINE float add_and_measure(enum format format, void *x, const void *change, long at, long width, float eps)
{
    vec squares[2] = {{0}};
    for (long i = 0; i < width; i += LANES) {
        vec v = load_first(format, x, at + i, width - i);
        if (change) {
            v = rounded(format, v + load_first(format, change, at + i, width - i));
            store_first(format, x, at + i, v, width - i);
        }
        squares[i / LANES % 2] = fused(v, v, squares[i / LANES % 2]);
    }
    return 1 / sqrtf(sum_of(squares[0] + squares[1]) / width + eps);
}

INLINE void add_norm(
    enum format format, void *hidden, const void *change, const void *weight, long rows, long width, float eps,
    void *normed)
{
#pragma omp parallel for schedule(static) if (rows * width >= WORTH_THREADS)
    for (long row = 0; row < rows; row++) {
        const long at = row * width;
        const float factor = change ? add_and_measure(format, hidden, change, at, width, eps)
                                    : add_and_measure(format, hidden, 0, at, width, eps);
        for (long i = 0; i < width; i += LANES) {
            vec x = load_first(format, hidden, at + i, width - i);
            if (weight)
                x = x * factor * load_first(FP32, weight, i, width - i);
            store_first(format, normed, at + i, x, width - i);
        }
    }
}

EXPORT void baton_add_norm(
    int format, void *hidden, const void *change, const void *weight, long rows, long width, double eps, void *normed)
{
    BY_FORMAT(format, add_norm, hidden, change, weight, rows, width, eps, normed);
}

INLINE void add_parts(enum format format, const float *const *parts, long count, long numbers, void *out)
{
#pragma omp parallel for schedule(static) if (numbers >= WORTH_THREADS)
    for (long i = 0; i < numbers; i += LANES) {
        vec sums[8];
        for (long part = 0; part < count; part++)
            sums[part] = load_first(FP32, parts[part], i, numbers - i);
        for (long apart = 1; apart < count; apart *= 2)
            for (long part = 0; part < count; part += 2 * apart)
                sums[part] += sums[part + apart];
        store_first(format, out, i, sums[0], numbers - i);
    }
}

EXPORT void baton_add_parts(int format, const float *const *parts, long count, long numbers, void *out)
{
    if (count == 2)
        BY_FORMAT(format, add_parts, parts, 2, numbers, out);
    else if (count == 4)
        BY_FORMAT(format, add_parts, parts, 4, numbers, out);
    else
        BY_FORMAT(format, add_parts, parts, 8, numbers, out);
}

EXPORT void baton_angles(
    const int64_t *positions, long tokens, const float *frequencies, long half, double magnitude, float *cosine,
    float *sine)
{
#pragma omp parallel for schedule(static) if (tokens * half >= 1024)
    for (long token = 0; token < tokens; token++)
        for (long i = 0; i < half; i++) {
            const float radians = (float)positions[token] * frequencies[i];
            cosine[token * half + i] = cosf(radians) * (float)magnitude;
            sine[token * half + i] = sinf(radians) * (float)magnitude;
        }
}

/* The factor of a head's norm: its own, or that of all queries or keys, which is computed at the first of them. */
INLINE float factor_of(enum format format, const struct heads *heads, void *values, long token, long head, float before)
{
    const long at = token * heads->stride + head * heads->dim;
    if (heads->norm == EACH_NORMED)
        return add_and_measure(format, values, 0, at, heads->dim, heads->eps);
    if (heads->norm == NORMED_TOGETHER && (head == 0 || head == heads->queries))
        return add_and_measure(format, values, 0, at, (head ? heads->keys : heads->queries) * heads->dim, heads->eps);
    return before;
}

INLINE vec scaled(enum format format, const void *values, long at, const float *weight, long i, float factor, long left)
{
    const vec x = load_first(format, values, at + i, left);
    return weight ? x * factor * load_first(FP32, weight, i, left) : x;
}

INLINE void rotate(enum format format, const struct heads *heads, const struct rotation *rotation, void *values)
{
    const long dim = heads->dim, count = heads->queries + heads->keys, half = rotation ? rotation->dim / 2 : 0;
    if (!half && heads->norm == NOT_NORMED)
        return;
#pragma omp parallel for schedule(static) if (heads->tokens * count * dim >= WORTH_THREADS)
    for (long token = 0; token < heads->tokens; token++) {
        float factor = 1;
        for (long head = 0; head < count; head++) {
            const long at = token * heads->stride + head * dim;
            const float *weight = heads->norm == NOT_NORMED ? 0 : heads->weight + head * dim;
            factor = factor_of(format, heads, values, token, head, factor);
            for (long i = 0; i < half; i += LANES) {
                const long left = half - i;
                const vec x = scaled(format, values, at, weight, i, factor, left);
                const vec y = scaled(format, values, at, weight, half + i, factor, left);
                const vec c = load_first(FP32, rotation->cosine, token * half + i, left);
                const vec s = load_first(FP32, rotation->sine, token * half + i, left);
                store_first(format, values, at + i, x * c - y * s, left);
                store_first(format, values, at + half + i, y * c + x * s, left);
            }
            for (long i = 2 * half; weight && i < dim; i += LANES)
                store_first(format, values, at + i, scaled(format, values, at, weight, i, factor, dim - i), dim - i);
        }
    }
}

EXPORT void baton_rotate(int format, const struct heads *heads, const struct rotation *rotation, void *values)
{
    BY_FORMAT(format, rotate, heads, rotation, values);
}

/* Bounded from above; NaN stays NaN. */
INLINE vec at_most(float bound, vec x) { return chosen(x > bound, all(bound), x); }

INLINE vec activated(enum format format, enum activation activation, vec gate, vec up)
{
    switch (activation) {
    case GELU_TANH: /* 0.5 x (1 + tanh y) is x times the sigmoid of 2 y */
        return times_sigmoid(format, gate, 1.59576912f * gate * fused(gate * gate, all(0.044715f), all(1))) * up;
    case CLAMPED_SWIGLU:
        gate = at_most(7, gate);
        up = -at_most(7, -at_most(7, up));
        return times_sigmoid(format, gate, gate * 1.702f) * (up + 1.0f);
    default:
        return times_sigmoid(format, gate, gate) * up;
    }
}

INLINE void gate(
    enum format format, enum activation activation, const void *gate_up, long rows, long width, void *out)
{
#pragma omp parallel for schedule(static) if (rows * width >= WORTH_THREADS)
    for (long row = 0; row < rows; row++)
        for (long i = 0; i < width; i += LANES) {
            const vec x = load_first(format, gate_up, 2 * row * width + i, width - i);
            const vec up = load_first(format, gate_up, (2 * row + 1) * width + i, width - i);
            store_first(format, out, row * width + i, activated(format, activation, x, up), width - i);
        }
}

INLINE void gate_in(enum format format, int activation, const void *gate_up, long rows, long width, void *out)
{
    if (activation == SILU)
        gate(format, SILU, gate_up, rows, width, out);
    else if (activation == GELU_TANH)
        gate(format, GELU_TANH, gate_up, rows, width, out);
    else
        gate(format, CLAMPED_SWIGLU, gate_up, rows, width, out);
}

EXPORT void baton_gate(int format, int activation, const void *gate_up, long rows, long width, void *out)
{
    BY_FORMAT(format, gate_in, activation, gate_up, rows, width, out);
}
