/* A few bf16 rows as fp32 strips, [depth][rows], for products with weights that are widened in registers. */

#ifndef STRIPS_H
#define STRIPS_H

#include "product.h"
#include "transpose.h"

#define SQUARES ((TILE_ROWS + LANES - 1) / LANES) /* of vectors, in which a strip's rows become columns */

INLINE long strips_of(long rows) { return (rows + TILE_ROWS - 1) / TILE_ROWS; }
/* The first row of a strip, or the end of the last one. A last strip of 4, 2 or 1 rows gets one row of the strip before:
   5 and 3 rows keep the units busier than 6 and 2. */
INLINE long first_of(long strip, long rows)
{
    const long left = rows % TILE_ROWS, given = strip == strips_of(rows) - 1 && (left == 1 || left == 2 || left == 4);
    return least(rows, most(0, strip * TILE_ROWS - given));
}

/* Up to TILE_ROWS bf16 rows of x, `stride` elements apart, as fp32 [depth rounded up to 2][rows], padded with 0. */
INLINE void take_strip(const uint16_t *x, long stride, long rows, long depth, float *to)
{
    for (long k = 0; k < depth; k += LANES) {
        const long left = depth - k, count = rounded_up(least(left, LANES), 2);
        vec square[SQUARES * LANES];
#pragma GCC unroll 16
        for (long row = 0; row < SQUARES * LANES; row++)
            square[row] = row < rows ? load_first(BF16, x + row * stride, k, left) : (vec){0};
        if (rows == 1) {
            store(FP32, to, k, square[0]);
            continue;
        }
        for (long first = 0; first < SQUARES * LANES; first += LANES)
            transpose(square + first);
        for (long i = 0; i < count; i++) /* each begins behind the rows of the one before, and writes over the rest */
            for (long first = 0; first < SQUARES * LANES; first += LANES)
                store(FP32, to, (k + i) * rows + first, square[first + i]);
    }
}

#endif
