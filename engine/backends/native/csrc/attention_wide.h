/* Attention over one tile of a bf16 pool in fp32 arithmetic, for processors without bf16 products: keys and values are
   widened in registers, as weights are (wide_product.h).

   Keys are transposed as pairs of bf16, values are used in place. A score is summed over the head's elements in order, an
   output over the positions in order, whichever register tile a row is in. */

#ifndef ATTENTION_WIDE_H
#define ATTENTION_WIDE_H

#include "attention_step.h"
#include "softmax.h"
#include "strips.h"

#if !defined HAS_PAIRS
#define HAS_WIDE
#define WIDE_GROUP (4 * TILE_ROWS)
#define FEW_VECTORS 4 /* vectors side by side that fit the registers … */
#if TILE_VECTORS == 4
#define FEW_ROWS TILE_ROWS /* … for this many rows; otherwise 2 vectors */
#else
#define FEW_ROWS 3
#endif
#define LEAST_COLUMNS (2 * LANES)

struct wide_scratch {
    uint16_t rows[MAX_ROW_NUMBERS];                /* queries */
    float queries[MAX_ROW_NUMBERS + LANES * LANES]; /* the same in strips */
    float scores[WIDE_GROUP * TILE];
    uint32_t keys[MAX_DIM / 2 * TILE]; /* [pairs of a head's elements, TILE] */
};

static int is_wide(const struct attention *step)
{
    return step->format == BF16 && !is_quantized(step) && step->dim % 2 == 0 && step->value_dim % LEAST_COLUMNS == 0;
}

static void take_wide_query(const struct attention *step, const void *query, long row, struct wide_scratch *own)
{
    memcpy(own->rows + row * step->dim, query, step->dim * 2);
}

/* Splits the rows of each group into strips; the strip that begins with row r lies at r x `dim`. */
static void take_wide_queries(const struct attention *step, long rows, struct wide_scratch *own)
{
    const long dim = step->dim;
    for (long group = 0; group < rows; group += WIDE_GROUP) {
        const long all_rows = least(WIDE_GROUP, rows - group);
        for (long strip = 0; strip < strips_of(all_rows); strip++) {
            const long row = group + first_of(strip, all_rows), count = group + first_of(strip + 1, all_rows) - row;
            take_strip(own->rows + row * dim, dim, count, dim, own->queries + row * dim);
        }
    }
}

/* Transposes the keys of the block at position `at` of the tile; prefetches keys and values at `next`. */
static void prepare_wide(
    const struct attention *step, const char *kv, long at, const char *next, struct wide_scratch *own)
{
    take_columns(FP32, kv, step->block, step->dim / 2, (float *)own->keys + at, TILE, next);
    if (step->vectors > 1)
        for (long line = 0; line < step->block * token_bytes(step); line += 64)
            __builtin_prefetch(next + value_place(step) + line);
}

/* Scores of a strip's rows with `vectors` x LANES positions. */
INLINE void multiply_keys(
    const int rows, const int vectors, const float *queries, const uint32_t *keys, long dim, vec scale, float *scores)
{
    vec sum[TILE_ROWS][FEW_VECTORS] = {0};
    for (long d = 0; d < dim; d += 2, keys += TILE)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            vec column[FEW_VECTORS];
            __asm__("" : "+r"(keys)); /* read again: no registers are left to keep them */
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) {
                uvec word;
                memcpy(&word, keys + v * LANES, sizeof word);
                column[v] = (vec)(half ? word & 0xffff0000u : word << 16);
            }
#pragma GCC unroll 6
            for (int row = 0; row < rows; row++) {
                const vec own = all(queries[(d + half) * rows + row]);
#pragma GCC unroll 4
                for (int v = 0; v < vectors; v++)
                    add_fused(own, column[v], &sum[row][v]);
            }
        }
#pragma GCC unroll 6
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            store(FP32, scores, row * TILE + v * LANES, sum[row][v] * scale);
}

/* Visible positions of a tile, and where their values are. */
struct values {
    const char *const *blocks;
    struct span seen;
    long place, block, dim; /* of a block's values; its positions, elements between them */
};

/* sums = weights x values, for a strip's rows and `vectors` x LANES columns. */
INLINE void multiply_values(
    const int rows, const int vectors, const float *weights, const struct values *values, long column, float *sums,
    long width)
{
    const long block = values->block;
    vec sum[TILE_ROWS][FEW_VECTORS] = {0};
    for (long t = values->seen.first, next; t < values->seen.end; t = next) {
        const char *kv = values->blocks[t / block] + values->place;
        const uint16_t *value = (const uint16_t *)kv + t % block * values->dim + column;
        next = least(values->seen.end, (t / block + 1) * block);
        for (; t < next; t++, value += values->dim) {
            vec own[FEW_VECTORS];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                own[v] = load(BF16, value, v * LANES);
#pragma GCC unroll 6
            for (int row = 0; row < rows; row++) {
                const vec weight = all(weights[row * TILE + t]);
#pragma GCC unroll 4
                for (int v = 0; v < vectors; v++)
                    add_fused(weight, own[v], &sum[row][v]);
            }
        }
    }
#pragma GCC unroll 6
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            store(FP32, sums, row * width + column + v * LANES, sum[row][v]);
}

/* Vectors of columns that a strip multiplies at once, with `left` columns left. */
INLINE long vectors_of(long rows, long left) { return rows <= FEW_ROWS && left >= FEW_VECTORS * LANES ? FEW_VECTORS : 2; }

#define FEW(COUNT) (COUNT < FEW_ROWS ? COUNT : FEW_ROWS), FEW_VECTORS

static __attribute__((noinline)) void score(
    long rows, long vectors, const float *queries, const uint32_t *keys, long dim, vec scale, float *scores)
{
#define SCORE(COUNT) \
    if (vectors == 2) multiply_keys(COUNT, 2, queries, keys, dim, scale, scores); \
    else multiply_keys(FEW(COUNT), queries, keys, dim, scale, scores)
    FOR_ROWS(rows, SCORE)
#undef SCORE
}

static __attribute__((noinline)) void add_up(
    long rows, long vectors, const float *weights, const struct values *values, long column, float *sums, long width)
{
#define ADD(COUNT) \
    if (vectors == 2) multiply_values(COUNT, 2, weights, values, column, sums, width); \
    else multiply_values(FEW(COUNT), weights, values, column, sums, width)
    FOR_ROWS(rows, ADD)
#undef ADD
}

/* See `attend_fp32`. */
static void attend_wide(
    const struct attention *step, const struct attention_params *params, const char *const *blocks, const struct visible *visible,
    long first, long rows, struct wide_scratch *own, struct state tile)
{
    const long dim = step->dim, width = state_width(step);
    const long from = visible->all.first / LEAST_COLUMNS * LEAST_COLUMNS, end = rounded_up(visible->all.end, LEAST_COLUMNS);
    const struct values values = {blocks, visible->all, value_place(step), step->block, dim};
    const vec scale = all(params->softcap ? 1 : params->scale);
    for (long strip = 0; strip < strips_of(rows); strip++) {
        const long row = first_of(strip, rows), count = first_of(strip + 1, rows) - row;
        const float *queries = own->queries + (first + row) * dim;
        float *scores = own->scores + row * TILE;
        for (long t = from, vectors; t < end; t += vectors * LANES) {
            vectors = vectors_of(count, end - t);
            score(count, vectors, queries, own->keys + t, dim, scale, scores + t);
        }
        for (long r = row; r < row + count; r++, scores += TILE) {
            if (params->softcap)
                cap(scores, from, end, params->scale, params->softcap);
            soften(
                scores, from, end, visible->row[r], visible->hidden ? visible->hidden + r : 0, tile.maximum + r, tile.total + r);
        }
        scores = own->scores + row * TILE;
        for (long column = 0, vectors; column < step->value_dim; column += vectors * LANES) {
            vectors = vectors_of(count, step->value_dim - column);
            add_up(count, vectors, scores, &values, column, tile.sums + row * width, width);
        }
    }
}
#endif

#endif
