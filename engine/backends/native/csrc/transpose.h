/* Squares of vectors, rows for columns, in registers. */

#ifndef TRANSPOSE_H
#define TRANSPOSE_H

#include "vector.h"

#if LANES == 4
#define LOW 0, 4, 1, 5
#define HIGH 2, 6, 3, 7
#elif LANES == 8
#define LOW 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#endif
#if defined __clang__
#define INTERLEAVED(A, B, ...) __builtin_shufflevector(A, B, __VA_ARGS__)
#else
#define INTERLEAVED(A, B, ...) __builtin_shuffle(A, B, (ivec){__VA_ARGS__})
#endif

/* Each round rotates the bits of (row, column) by one; after log2(LANES) rounds rows are columns. */
INLINE void transpose(vec square[LANES])
{
#pragma GCC unroll 4
    for (int done = 1; done < LANES; done *= 2) {
        vec turned[LANES];
#pragma GCC unroll 8
        for (int i = 0; i < LANES / 2; i++) {
            turned[2 * i] = INTERLEAVED(square[i], square[i + LANES / 2], LOW);
            turned[2 * i + 1] = INTERLEAVED(square[i], square[i + LANES / 2], HIGH);
        }
        memcpy(square, turned, sizeof turned);
    }
}

INLINE float element(enum format format, const void *from, long at)
{
    if (format == BF16)
        return float_of((uint32_t)((const uint16_t *)from)[at] << 16);
    float value;
    memcpy(&value, (const float *)from + at, sizeof value);
    return value;
}

/* Writes `rows` rows of `width` elements as columns of `to`, whose rows are `stride` apart. Words are moved unchanged, so
   a pair of bf16 may pass as FP32. Prefetches as much memory at `next`. */
INLINE void take_columns(
    enum format format, const char *from, long rows, long width, float *to, long stride, const char *next)
{
    const long size = format == FP32 ? 4 : 2, whole_rows = rows / LANES * LANES;
    for (long row = 0; row < whole_rows && width >= LANES; row += LANES)
        for (long at = 0; at < width; at += LANES) {
            const long d = least(at, width - LANES); /* the last square may overlap the one before */
            vec square[LANES];
#pragma GCC unroll 16
            for (long i = 0; i < LANES; i++) {
                __builtin_prefetch(next + ((row + i) * width + d) * size);
                square[i] = load(format, from, (row + i) * width + d);
            }
            transpose(square);
#pragma GCC unroll 16
            for (long i = 0; i < LANES; i++)
                store(FP32, to, (d + i) * stride + row, square[i]);
        }
    for (long row = 0; row < rows; row++) /* elements outside whole squares */
        for (long d = row < whole_rows && width >= LANES ? width : 0; d < width; d++)
            to[d * stride + row] = element(format, from, row * width + d);
}

/* The sum, or the maximum, of each vector of a square, in the order of `sum_of`. */
INLINE vec sums_of(vec square[LANES])
{
#pragma GCC unroll 4
    for (int half = LANES / 2; half; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; i++)
            square[i] = INTERLEAVED(square[i], square[i + half], LOW) + INTERLEAVED(square[i], square[i + half], HIGH);
    return square[0];
}

INLINE vec largest_of_each(vec square[LANES])
{
#pragma GCC unroll 4
    for (int half = LANES / 2; half; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; i++)
            square[i] = larger(
                INTERLEAVED(square[i], square[i + half], LOW), INTERLEAVED(square[i], square[i + half], HIGH));
    return square[0];
}

#endif
