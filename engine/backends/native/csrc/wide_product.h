/* A few rows times a bf16 panel in fp32 arithmetic, for processors without bf16 products.

   Weights are widened in registers: a word holds two inputs, one is extracted by a shift, the other by a mask. Rows are
   widened once for all panels of a thread, in strips of up to TILE_ROWS rows, [depth][rows].

   An output has two sums, of even and of odd inputs, which hides latency for few rows; many rows take one half after the
   other. Each sum adds fused products in the order of the depth, so a row's bits depend neither on the other rows nor on
   where the depth is split. */

#ifndef WIDE_PRODUCT_H
#define WIDE_PRODUCT_H

#include "product_bf16.h"
#include "strips.h"

/* Floats of `rows` rows of `inputs`, with space for the last strip's overlapping stores. */
INLINE long wide_room(long rows, long inputs) { return rows * rounded_up(inputs, 2) + LANES * LANES; }

#if !defined HAS_BF16_PRODUCT
#define HAS_WIDE_PRODUCT

/* Rows of x in strips: the one that begins with row `first` is where `first` x depth, rounded up to 2, ends. */
static void take_wide(const char *x, long stride, long rows, long depth, float *to)
{
    for (long strip = 0; strip < strips_of(rows); strip++) {
        const long first = first_of(strip, rows), count = first_of(strip + 1, rows) - first;
        take_strip((const uint16_t *)x + first * stride, stride, count, depth, to + first * rounded_up(depth, 2));
    }
}

/* Memory to prefetch during the products: `bytes` with every step of the depth, at most a panel's. */
struct asked {
    const char *next;
    long bytes;
};

INLINE void ask_next(struct asked *asked)
{
    __builtin_prefetch(asked->next, 0, 2); /* into the second cache: the first is full of what is in use */
    for (long line = 64; line < PANEL * 4 && line < asked->bytes; line += 64)
        __builtin_prefetch(asked->next + line, 0, 2);
    asked->next += asked->bytes;
}

#define BOTH_ROWS 3 /* up to so many have registers for both halves at once */

/* Adds x times a panel of bf16 pairs [depth / 2][PANEL][2] to sums[first … last], or to 0 with `fresh`. */
INLINE void add_wide_rows(
    const int rows, const int first, const int last, const float *x, const char *panel, long depth, int fresh,
    struct asked asked, float *const sums[2])
{
    vec sum[2][TILE_ROWS][TILE_VECTORS];
#pragma GCC unroll 2
    for (int half = first; half <= last; half++)
        load_sums(rows, fresh, sums[half], PANEL, sum[half]);
    for (long k = 0; k < depth; k += 2, panel += PANEL * 4) {
        ask_next(&asked);
#pragma GCC unroll 2
        for (int half = first; half <= last; half++) {
            vec column[TILE_VECTORS];
#pragma GCC unroll 4
            for (int v = 0; v < TILE_VECTORS; v++) {
                uvec word;
                memcpy(&word, panel + v * sizeof word, sizeof word);
                column[v] = (vec)(half ? word & 0xffff0000u : word << 16);
            }
#pragma GCC unroll 6
            for (int row = 0; row < rows; row++) {
                const vec own = all(x[(k + half) * rows + row]);
#pragma GCC unroll 4
                for (int v = 0; v < TILE_VECTORS; v++)
                    add_fused(own, column[v], &sum[half][row][v]);
            }
        }
    }
#pragma GCC unroll 2
    for (int half = first; half <= last; half++)
        store_sums(rows, sum[half], sums[half], PANEL);
}

/* Adds the product of a strip that `take_wide` made, from a step of its depth on, with as many steps of a panel. */
static __attribute__((noinline)) void add_wide(
    long rows, const float *x, const char *panel, long depth, int fresh, struct asked asked, float *even, float *odd)
{
    float *const sums[2] = {even, odd};
#define BOTH(ROWS) add_wide_rows(ROWS, 0, 1, x, panel, depth, fresh, asked, sums)
#define EVEN(ROWS) add_wide_rows(ROWS, 0, 0, x, panel, depth, fresh, asked, sums)
#define ODD(ROWS) add_wide_rows(ROWS, 1, 1, x, panel, depth, fresh, asked, sums)
    switch (rows) {
    case 1: BOTH(1); return;
    case 2: BOTH(2); return;
    case BOTH_ROWS: BOTH(BOTH_ROWS); return;
    }
    asked.bytes /= 2;
    FOR_ROWS(rows, EVEN)
    asked.next += depth / 2 * asked.bytes;
    FOR_ROWS(rows, ODD)
#undef BOTH
#undef EVEN
#undef ODD
}

/* y = even + odd, for `rows` rows of sums that are nothing but rounded. */
INLINE void finish_halves(long rows, const float *even, const float *odd, uint16_t *y, long y_stride)
{
    for (long row = 0; row < rows; row++, even += PANEL, odd += PANEL, y += y_stride)
#pragma GCC unroll 4
        for (long v = 0; v < TILE_VECTORS; v++)
            store(BF16, y, v * LANES, load(FP32, even, v * LANES) + load(FP32, odd, v * LANES));
}

/* even += odd, for `rows` rows of sums. */
INLINE void join_halves(long rows, float *even, const float *odd)
{
    for (long at = 0; at < rows * PANEL; at += LANES)
        store(FP32, even, at, load(FP32, even, at) + load(FP32, odd, at));
}

#endif
#endif
