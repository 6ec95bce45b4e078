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
            const vec x = load_first(format, hidden, at + i, width - i) * factor;
            store_first(format, normed, at + i, x * load_first(FP32, weight, i, width - i), width - i);
        }
    }
}

EXPORT void baton_add_norm(
    int format, void *hidden, const void *change, const void *weight, long rows, long width, double eps, void *normed)
{
    if (format == FP32)
        add_norm(FP32, hidden, change, weight, rows, width, eps, normed);
    else
        add_norm(BF16, hidden, change, weight, rows, width, eps, normed);
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

INLINE void rotate(
    enum format format, void *heads, long stride, long tokens, long count, long dim, const float *cosine,
    const float *sine, const void *weight, float eps)
{
    const long half = dim / 2;
#pragma omp parallel for schedule(static) if (tokens * count * dim >= WORTH_THREADS)
    for (long token = 0; token < tokens; token++)
        for (long head = 0; head < count; head++) {
            const long at = token * stride + head * dim;
            const float factor = weight ? add_and_measure(format, heads, 0, at, dim, eps) : 1;
            for (long i = 0; i < half; i += LANES) {
                const long left = half - i;
                vec x = load_first(format, heads, at + i, left), y = load_first(format, heads, at + half + i, left);
                if (weight) {
                    x = x * factor * load_first(FP32, weight, head * dim + i, left);
                    y = y * factor * load_first(FP32, weight, head * dim + half + i, left);
                }
                const vec c = load_first(FP32, cosine, token * half + i, left);
                const vec s = load_first(FP32, sine, token * half + i, left);
                store_first(format, heads, at + i, x * c - y * s, left);
                store_first(format, heads, at + half + i, y * c + x * s, left);
            }
        }
}

EXPORT void baton_rotate(
    int format, void *heads, long stride, long tokens, long count, long dim, const float *cosine, const float *sine,
    const void *weight, double eps)
{
    if (format == FP32)
        rotate(FP32, heads, stride, tokens, count, dim, cosine, sine, weight, eps);
    else
        rotate(BF16, heads, stride, tokens, count, dim, cosine, sine, weight, eps);
}

/* silu(x) = x / (1 + e^-x), by an exponential of what is not above 0. */
INLINE vec silu(enum format format, vec x)
{
    const ivec negative = x < 0.0f;
    const vec e = exponential(chosen(negative, x, -x));
    return quotient(format, x * chosen(negative, e, all(1)), e + 1.0f);
}

INLINE void gate(enum format format, const void *gate_up, long rows, long width, void *out)
{
#pragma omp parallel for schedule(static) if (rows * width >= WORTH_THREADS)
    for (long row = 0; row < rows; row++)
        for (long i = 0; i < width; i += LANES) {
            const vec x = load_first(format, gate_up, 2 * row * width + i, width - i);
            const vec up = load_first(format, gate_up, (2 * row + 1) * width + i, width - i);
            store_first(format, out, row * width + i, silu(format, x) * up, width - i);
        }
}

EXPORT void baton_gate(int format, const void *gate_up, long rows, long width, void *out)
{
    if (format == FP32)
        gate(FP32, gate_up, rows, width, out);
    else
        gate(BF16, gate_up, rows, width, out);
}
