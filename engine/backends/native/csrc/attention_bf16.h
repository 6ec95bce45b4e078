/* A tile of positions for a group of rows by products of bf16 pairs, with fp32 sums: AMX where the kernel allows it,
   AVX-512 dot products otherwise. Weights are rounded to bf16 for their product with the values. */

#ifndef ATTENTION_BF16_H
#define ATTENTION_BF16_H

#include "attention_step.h"
#include "softmax.h"
#include "transpose.h"

#if defined HAS_PAIRS
#include "pair_product.h"
#define HAS_BF16

#define CHUNK 32      /* depth of a tile register: head elements of a score's product, positions of a value's */

struct bf16_scratch {
    uint16_t queries[MAX_ROW_NUMBERS], weights[GROUP * TILE];
    float scores[GROUP * TILE];
    uint32_t keys[MAX_DIM / 2 * TILE];   /* [pairs of a head's elements, TILE] */
    long shaped;                         /* rows that AMX is ready for */
    uint32_t values[TILE / 2 * MAX_DIM]; /* [pairs of positions, width] */
};

static long padded_dim(const struct attention *step) { return rounded_up(step->dim, CHUNK); }

/* What lies behind a head's last element meets zeros on both sides. */
static void take_bf16_query(const struct attention *step, const void *query, long row, struct bf16_scratch *own)
{
    const long dim = step->dim, padded = padded_dim(step);
    memcpy(own->queries + row * padded, query, dim * 2);
    memset(own->queries + row * padded + dim, 0, (padded - dim) * 2);
}

static void clear_bf16(const struct attention *step, struct bf16_scratch *own)
{
    memset(own->keys + step->dim / 2 * TILE, 0, (padded_dim(step) - step->dim) / 2 * TILE * 4);
}

/* Meanwhile the memory at `next`, as large, is asked for: no more at once than the processor can wait for. */
static void prepare_bf16_keys(
    const struct attention *step, const char *keys, long at, const char *next, struct bf16_scratch *own)
{
    take_columns(FP32, keys, step->block, step->dim / 2, (float *)own->keys + at, TILE, next);
}

INLINE vec beside(vec low, vec high) { return (vec)((uvec)low >> 16 | (uvec)high); }

/* Two positions' values beside each other, zeros for those that no row sees. */
static void prepare_bf16_values(
    const struct attention *step, const char *const *blocks, struct span seen, struct bf16_scratch *own)
{
    static const uint16_t nothing[MAX_DIM];
    const long dim = step->dim, value_dim = step->value_dim, width = state_width(step), block = step->block;
    for (long t = seen.first / CHUNK * CHUNK; t < rounded_up(seen.end, CHUNK); t += 2) {
        const uint16_t *pair[2];
        for (long i = 0; i < 2; i++) {
            const long at = t + i, place = value_place(step) / 2 + at % block * dim;
            pair[i] = nothing;
            if (at >= seen.first && at < seen.end) {
                pair[i] = (const uint16_t *)blocks[at / block] + place;
                for (long d = 0; d < value_dim; d += 32)
                    __builtin_prefetch((const uint16_t *)blocks[at / block + 1] + place + d);
            }
        }
        float *words = (float *)own->values + t / 2 * width;
        long d = 0;
        for (; d + LANES <= value_dim; d += LANES)
            store(FP32, words, d, beside(load(BF16, pair[0], d), load(BF16, pair[1], d)));
        if (d < value_dim) {
            const long left = value_dim - d;
            store(FP32, words, d, beside(load_first(BF16, pair[0], d, left), load_first(BF16, pair[1], d, left)));
        }
    }
}

/* AMX multiplies as many rows as it was told last. */
static void shape(long rows, long *shaped)
{
#if defined HAS_AMX
    if (amx_allowed && *shaped != rows)
        shape_pair_tiles(rows);
#endif
    *shaped = rows;
}

/* See `attend_fp32`. */
static void attend_bf16(
    const struct attention *step, const struct attention_params *params, const struct visible *visible, long first, long rows,
    struct bf16_scratch *own, struct state tile)
{
    const long width = state_width(step), padded = padded_dim(step);
    const long from = visible->all.first / CHUNK * CHUNK, end = rounded_up(visible->all.end, CHUNK);
    shape(rows, &own->shaped);
    multiply_pairs(
        rows, end - from, padded, own->queries + first * padded, padded, own->keys + from, TILE, own->scores + from, TILE);
    if (params->softcap)
        for (long row = 0; row < rows; row++)
            cap(own->scores + row * TILE, from, end, params->scale, params->softcap);
    for (long row = 0; row < rows; row += LANES)
        soften_to_bf16(
            own->scores + row * TILE, least(LANES, rows - row), from, end, visible->row + row,
            visible->hidden ? visible->hidden + row : 0, params->softcap ? 1 : params->scale,
            own->weights + row * TILE, tile.maximum + row, tile.total + row);
    multiply_pairs(
        rows, rounded_up(step->value_dim, LANES), end - from, own->weights + from, TILE, own->values + from / 2 * width,
        width, tile.sums, width);
}
#endif

#endif
