/* The one inner loop: a few rows times a panel of columns, summed in the order of the depth.

   sum[row][column] = sum[row][column] + a[row][0] b[0][column] + a[row][1] b[1][column] + …, one fused operation after
   the other. So a row's bits depend neither on how many rows share the tile nor on where the depth was cut. */

#ifndef PRODUCT_H
#define PRODUCT_H

#include "vector.h"

/* Accumulators of a tile: 6 x 2 of 16 registers, or 6 x 4 of 32: enough to hide the latency of the fused operation. */
#define TILE_ROWS 6
#if defined __AVX512F__ || defined __aarch64__
#define TILE_VECTORS 4
#else
#define TILE_VECTORS 2
#endif
#define PANEL (TILE_VECTORS * LANES)
/* Calls `CALL(rows)` with a constant for 1 … TILE_ROWS rows; more are TILE_ROWS. */
#define FOR_ROWS(rows, CALL) \
    switch (rows) { \
    case 1: CALL(1); break; \
    case 2: CALL(2); break; \
    case 3: CALL(3); break; \
    case 4: CALL(4); break; \
    case 5: CALL(5); break; \
    default: CALL(6); \
    }

/* Loads the sums [rows][PANEL] of a tile into registers; with `fresh` they are 0. Rows are `stride` floats apart. */
INLINE void load_sums(const int rows, int fresh, const float *sums, long stride, vec sum[][TILE_VECTORS])
{
#pragma GCC unroll 6
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 4
        for (int v = 0; v < TILE_VECTORS; v++)
            sum[row][v] = fresh ? (vec){0} : load(FP32, sums + row * stride, v * LANES);
}

INLINE void store_sums(const int rows, vec sum[][TILE_VECTORS], float *sums, long stride)
{
#pragma GCC unroll 6
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 4
        for (int v = 0; v < TILE_VECTORS; v++)
            store(FP32, sums + row * stride, v * LANES, sum[row][v]);
}

INLINE void add_rows(
    const int rows, const float *a, long a_stride, const float *b, long b_stride, long depth,
    const char *next, long next_step, float *sums, long sums_stride)
{
    vec sum[TILE_ROWS][TILE_VECTORS];
    load_sums(rows, 0, sums, sums_stride, sum);
    for (long k = 0; k < depth; k++) {
        vec column[TILE_VECTORS];
        for (long line = 0; line < next_step; line += 64)
            __builtin_prefetch(next + k * next_step + line, 0, 2);
#pragma GCC unroll 4
        for (int v = 0; v < TILE_VECTORS; v++)
            column[v] = load(FP32, b + k * b_stride, v * LANES);
#pragma GCC unroll 6
        for (int row = 0; row < rows; row++) {
            const vec x = all(a[row * a_stride + k]);
#pragma GCC unroll 4
            for (int v = 0; v < TILE_VECTORS; v++)
                sum[row][v] = fused(x, column[v], sum[row][v]);
        }
    }
    store_sums(rows, sum, sums, sums_stride);
}

/* Adds a b to `sums`, all fp32: `a` [rows, depth], `b` [depth, PANEL], `sums` [rows, PANEL], with
   rows at these distances. Meanwhile memory at `next` is asked for, `next_step` bytes with every step of the depth. */
static __attribute__((noinline)) void add_tile(
    long rows, const float *a, long a_stride, const float *b, long b_stride, long depth,
    const char *next, long next_step, float *sums, long sums_stride)
{
#define ROWS(COUNT) add_rows(COUNT, a, a_stride, b, b_stride, depth, next, next_step, sums, sums_stride)
    FOR_ROWS(rows, ROWS)
#undef ROWS
}

#endif
