/* What a layer does between its products. */

#ifndef ELEMENTWISE_H
#define ELEMENTWISE_H

#include "vector.h"

/* hidden += change, where there is one; normed = hidden / rms(hidden) * weight. All [rows, width], contiguous; the weight
   is fp32 [width]. Without one, hidden is copied. `normed` may be `hidden`. */
EXPORT void baton_add_norm(
    int format, void *hidden, const void *change, const void *weight, long rows, long width, double eps, void *normed);

/* out = the sum of 2, 4 or 8 fp32 parts of as many `numbers`, in the tree of engine/parallel/sums.py, rounded once. */
EXPORT void baton_add_parts(int format, const float *const *parts, long count, long numbers, void *out);

/* Cosine and sine of position x frequency, times `magnitude`: fp32 [tokens, half] each. By the C library, one at a time:
   its vector versions round differently, and which element meets which would depend on the batch. */
EXPORT void baton_angles(
    const int64_t *positions, long tokens, const float *frequencies, long half, double magnitude, float *cosine,
    float *sine);

/* A rotation's angles for a step's tokens: fp32 [tokens, dim / 2] each. */
struct rotation {
    int64_t dim; /* numbers of a head that are rotated: its first */
    const float *cosine, *sine;
};

enum norm { NOT_NORMED, EACH_NORMED, NORMED_TOGETHER };

/* Heads of queries, then of keys: [tokens, queries + keys, dim], `stride` elements between tokens. */
struct heads {
    int64_t queries, keys, dim, stride, tokens;
    int64_t norm;        /* `enum norm`: each head alone, or all queries as one vector, and all keys as another … */
    const float *weight; /* … by this weight [queries + keys, dim] */
    double eps;
};

/* Norms heads in place, and rotates them, where there is a `rotation`; pairs are (i, i + its dim / 2). */
EXPORT void baton_rotate(int format, const struct heads *heads, const struct rotation *rotation, void *values);

enum activation { SILU, GELU_TANH, CLAMPED_SWIGLU };

/* out = activation(first half, second half), of `gate_up` [rows, 2 x width], contiguous: see engine/model/config.py. */
EXPORT void baton_gate(int format, int activation, const void *gate_up, long rows, long width, void *out);

#endif
