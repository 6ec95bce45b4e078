/* What a layer does between its products. */

#ifndef ELEMENTWISE_H
#define ELEMENTWISE_H

#include "vector.h"

/* hidden += change, where there is one; normed = hidden / rms(hidden) * weight. All [rows, width], contiguous; the weight
   is fp32 [width]. */
EXPORT void baton_add_norm(
    int format, void *hidden, const void *change, const void *weight, long rows, long width, double eps, void *normed);

/* Cosine and sine of position x frequency, times `magnitude`: fp32 [tokens, half] each. By the C library, one at a time:
   its vector versions round differently, and which element meets which would depend on the batch. */
EXPORT void baton_angles(
    const int64_t *positions, long tokens, const float *frequencies, long half, double magnitude, float *cosine,
    float *sine);

/* Rotates `heads` [tokens, count, dim] in place, `stride` elements between tokens; pairs are (i, i + dim / 2). Where
   there is a `weight`, fp32 [count, dim], heads are normed by it first. */
EXPORT void baton_rotate(
    int format, void *heads, long stride, long tokens, long count, long dim, const float *cosine, const float *sine,
    const void *weight, double eps);

/* out = silu(first half) * second half, of `gate_up` [rows, 2 x width], contiguous. */
EXPORT void baton_gate(int format, const void *gate_up, long rows, long width, void *out);

#endif
