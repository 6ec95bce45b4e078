/* Products of bf16 in pairs, with fp32 sums. */

#ifndef PAIR_PRODUCT_H
#define PAIR_PRODUCT_H

#include "amx.h"
#include "product.h"

#if defined HAS_AMX
#define MAX_TILE_ROWS 32

/* Sums are tiles 0 to 3, a's rows 4 and 5, b's 6 and 7. */
static void shape_pair_tiles(long rows)
{
    struct tile_shapes shapes = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        const int second = rows > 16 && (tile == 2 || tile == 3 || tile == 5);
        shapes.row_bytes[tile] = 64;
        shapes.rows[tile] = tile >= 6 ? 16 : second ? rows - 16 : least(rows, 16);
    }
    shape_tiles(&shapes);
}

/* Up to 16 rows and four vectors of columns. */
INLINE void multiply_wide(
    const int vectors, long depth, const uint16_t *a, long a_stride, const uint32_t *b, long b_stride, float *sums,
    long sums_stride)
{
    TILE_ZERO(0);
    if (vectors > 1) TILE_ZERO(1);
    if (vectors > 2) TILE_ZERO(2);
    if (vectors > 3) TILE_ZERO(3);
    for (long k = 0; k < depth; k += 32) {
        const uint32_t *row = b + k / 2 * b_stride;
        TILE_LOAD(4, a + k, a_stride * 2);
        TILE_LOAD(6, row, b_stride * 4);
        TILE_ADD_PRODUCT(0, 4, 6);
        if (vectors > 1) { TILE_LOAD(7, row + 16, b_stride * 4); TILE_ADD_PRODUCT(1, 4, 7); }
        if (vectors > 2) { TILE_LOAD(6, row + 32, b_stride * 4); TILE_ADD_PRODUCT(2, 4, 6); }
        if (vectors > 3) { TILE_LOAD(7, row + 48, b_stride * 4); TILE_ADD_PRODUCT(3, 4, 7); }
    }
    TILE_STORE(0, sums, sums_stride * 4);
    if (vectors > 1) TILE_STORE(1, sums + 16, sums_stride * 4);
    if (vectors > 2) TILE_STORE(2, sums + 32, sums_stride * 4);
    if (vectors > 3) TILE_STORE(3, sums + 48, sums_stride * 4);
}

/* 17 to 32 rows and two vectors of columns: half as much of b is read. */
INLINE void multiply_high(
    const int vectors, long depth, const uint16_t *a, long a_stride, const uint32_t *b, long b_stride, float *sums,
    long sums_stride)
{
    TILE_ZERO(0);
    TILE_ZERO(2);
    if (vectors > 1) { TILE_ZERO(1); TILE_ZERO(3); }
    for (long k = 0; k < depth; k += 32) {
        const uint32_t *row = b + k / 2 * b_stride;
        TILE_LOAD(4, a + k, a_stride * 2);
        TILE_LOAD(6, row, b_stride * 4);
        TILE_ADD_PRODUCT(0, 4, 6);
        TILE_LOAD(5, a + 16 * a_stride + k, a_stride * 2);
        TILE_ADD_PRODUCT(2, 5, 6);
        if (vectors > 1) {
            TILE_LOAD(7, row + 16, b_stride * 4);
            TILE_ADD_PRODUCT(1, 4, 7);
            TILE_ADD_PRODUCT(3, 5, 7);
        }
    }
    TILE_STORE(0, sums, sums_stride * 4);
    TILE_STORE(2, sums + 16 * sums_stride, sums_stride * 4);
    if (vectors > 1) {
        TILE_STORE(1, sums + 16, sums_stride * 4);
        TILE_STORE(3, sums + 16 * sums_stride + 16, sums_stride * 4);
    }
}

static void multiply_tiles(
    long rows, long columns, long depth, const uint16_t *a, long a_stride, const uint32_t *b, long b_stride,
    float *sums, long sums_stride)
{
    if (rows > 16) {
        for (long c = 0; c + 16 < columns; c += 32)
            multiply_high(2, depth, a, a_stride, b + c, b_stride, sums + c, sums_stride);
        if (columns % 32)
            multiply_high(1, depth, a, a_stride, b + columns - 16, b_stride, sums + columns - 16, sums_stride);
        return;
    }
    for (long c = 0; c < columns; c += 64)
        switch ((columns - c) / 16) {
        case 1: multiply_wide(1, depth, a, a_stride, b + c, b_stride, sums + c, sums_stride); break;
        case 2: multiply_wide(2, depth, a, a_stride, b + c, b_stride, sums + c, sums_stride); break;
        case 3: multiply_wide(3, depth, a, a_stride, b + c, b_stride, sums + c, sums_stride); break;
        default: multiply_wide(4, depth, a, a_stride, b + c, b_stride, sums + c, sums_stride);
        }
}
#endif

INLINE void multiply_vectors(
    const int rows, const int vectors, long depth, const uint16_t *a, long a_stride, const uint32_t *b, long b_stride,
    float *sums, long sums_stride)
{
    vec sum[TILE_ROWS][4] = {{{0}}};
    for (long k = 0; k < depth; k += 2) {
        uvec word[4]; /* vector by vector: GCC would keep arrays that are copied as a whole in memory */
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            memcpy(&word[v], b + k / 2 * b_stride + v * LANES, sizeof *word);
#pragma GCC unroll 6
        for (int row = 0; row < rows; row++) {
            uint32_t pair;
            memcpy(&pair, a + row * a_stride + k, sizeof pair);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                sum[row][v] = add_pairs(sum[row][v], pair - (uvec){0}, word[v]);
        }
    }
#pragma GCC unroll 6
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            store(FP32, sums + row * sums_stride, v * LANES, sum[row][v]);
}

/* sums = a b: `a` [rows, depth] bf16, `b` [depth / 2, columns] of pairs, `sums` [rows, columns]; `columns` are whole
   vectors, `depth` is a multiple of 32. With AMX, as many rows as the tiles were shaped for. */
static void multiply_pairs(
    long rows, long columns, long depth, const uint16_t *a, long a_stride, const uint32_t *b, long b_stride,
    float *sums, long sums_stride)
{
#if defined HAS_AMX
    if (amx_allowed) {
        multiply_tiles(rows, columns, depth, a, a_stride, b, b_stride, sums, sums_stride);
        return;
    }
#endif
    for (long row = 0; row < rows; row += TILE_ROWS)
        for (long c = 0, step; c < columns; c += step) {
            float *to = sums + row * sums_stride + c;
            step = columns - c >= 4 * LANES ? 4 * LANES : LANES;
#define FOUR(ROWS) multiply_vectors(ROWS, 4, depth, a + row * a_stride, a_stride, b + c, b_stride, to, sums_stride)
#define ONE(ROWS) multiply_vectors(ROWS, 1, depth, a + row * a_stride, a_stride, b + c, b_stride, to, sums_stride)
            if (step > LANES)
                FOR_ROWS(rows - row, FOUR)
            else
                FOR_ROWS(rows - row, ONE)
#undef FOUR
#undef ONE
        }
}

#endif
