/* Arguments of a step of attention, its units of work, and its functions. attention.c, attention_bf16.h, attention_fp32.h
   and softmax.h include it. The structs are mirrored by ctypes and numpy. */

#ifndef ATTENTION_STEP_H
#define ATTENTION_STEP_H

#include <stdint.h>

#define TILE 128     /* positions of one softmax, from a multiple of TILE on; a multiple of every block size */
#define MAX_BLOCK 64
#define MAX_DIM 576 /* of a latent vector and a rotated key */
#define MAX_ROWS 192 /* of a unit: they share prepared keys and values */
#define MAX_ROW_NUMBERS (128 * MAX_DIM) /* of the queries of a unit's rows */
#define KV_INT8 3    /* pool formats beside `enum format`, as in library.py */
#define KV_FP8 4
#define SCALE_BYTES 2
#define GROUP 32     /* rows whose scores fit the L1 cache together */

#if !defined EXPORT
#define EXPORT __attribute__((visibility("default")))
#endif

/* Rows (tokens x query heads of a KV head) of one sequence, and tiles that they attend to; computed for each KV head. */
struct unit {
    int64_t work;       /* row of the block table */
    int64_t token;      /* the batch's row of the work's first token … */
    int64_t position;   /* … and its position in the sequence */
    int64_t first;      /* first row of the unit */
    int64_t rows;
    int64_t begin, end; /* tiles: from begin x TILE to end x TILE */
    int64_t partial;    /* where the rows' states of all tiles lie in `partials`, or -1: this unit has all the tiles */
};

/* A KV head has two vectors of each token, key and value; or one of `dim` values, whose first `value_dim` are the value. */
struct attention {
    int64_t format, kv; /* of the computation, and of the pool: the same, or KV_INT8 or KV_FP8 */
    int64_t kv_heads, vectors, shared, dim, value_dim, block;
    int64_t window;        /* positions that a query sees, its own included; 0: all */
    const int64_t *tables; /* [works, table_stride] */
    int64_t table_stride;
    const struct unit *units;
    int64_t unit_count;
    float *partials; /* null where no unit has one */
    const struct tree_mask *tree_masks; /* [tokens] for draft trees; null: a token sees all up to itself */
};

/* Tree mask of a token (engine/model/trees.py): it sees all places up to `last`, and last + 1 + j where bit j is set. Its
   own place is the last that it sees. */
struct tree_mask {
    int64_t position; /* where a window ends */
    int64_t last;
    uint64_t bits;
};

/* Attention parameters of one layer. */
struct attention_params {
    double scale;       /* of scores */
    double softcap;     /* a score s becomes softcap x tanh(s / softcap); 0: it stays */
    const float *sinks; /* [heads], scores of a key whose value is 0; or null */
};

/* Floats of a row of sums: whole vectors. */
static inline int64_t state_width(const struct attention *step) { return (step->value_dim + 63) / 64 * 64; }
/* Bytes of one token's key, or value, of one head, in the format of the computation. */
static inline int64_t token_bytes(const struct attention *step) { return step->dim * (step->format ? 2 : 4); }
/* Offset of a block's values behind its keys, dequantized; 0 if keys and values are one vector. */
static inline int64_t value_place(const struct attention *step)
{
    return (step->vectors - 1) * step->block * token_bytes(step);
}
static inline int is_quantized(const struct attention *step) { return step->kv >= KV_INT8; }
/* Values of a vector that share its first scale: a latent vector and the key behind it have a scale each. */
static inline int64_t first_part(const struct attention *step) { return step->vectors == 1 ? step->value_dim : step->dim; }
/* Bytes of a vector of one of the pool's blocks. */
static inline int64_t vector_bytes(const struct attention *step)
{
    if (!is_quantized(step))
        return step->block * token_bytes(step);
    return step->block * (step->dim + (first_part(step) < step->dim ? 2 : 1) * SCALE_BYTES);
}

/* The first position that a token sees. */
static inline int64_t begin_of(const struct attention *step, int64_t position)
{
    return step->window && position >= step->window ? position - step->window + 1 : 0;
}
/* A lower bound of a unit's positions from `row` on; the positions of a draft tree are not in order. */
static inline int64_t earliest(const struct attention *step, const struct unit *unit, int64_t row)
{
    return unit->position + (step->tree_masks ? 0 : (unit->first + row) / step->shared);
}
/* First tile that a unit's rows see: the begin of the first of its units, if there are several. */
static inline int64_t first_tile(const struct attention *step, const struct unit *unit)
{
    return begin_of(step, earliest(step, unit, 0)) / TILE;
}

/* Positions of a tile: first … end - 1. */
struct span {
    int64_t first, end;
};

/* Positions of a tile inside a row's span that are hidden from it, a bit for each. */
struct hidden {
    uint64_t words[TILE / 64];
};

/* Visible spans of a tile, of a group of rows and of each row. */
struct visible {
    struct span all, row[GROUP];
    const struct hidden *hidden; /* [GROUP], or null: no position is hidden */
};

/* See softmax.h; `sums` is [rows, state_width]. */
struct state {
    float *maximum, *total, *sums;
};

/* `queries` [tokens, heads, dim], `query_stride` elements between tokens; `out` [tokens, heads, value_dim], contiguous. */
EXPORT void baton_attend(
    const struct attention *step, const struct attention_params *params, const void *queries, long query_stride, const void *pool,
    void *out);

/* Stores `keys_values` [tokens, vectors x kv_heads, dim], keys before values, `stride` elements between tokens, to `slots`
   (block x block size + offset). Clears fresh blocks first: blocks are transferred whole, without a former owner's data. */
EXPORT void baton_store(
    const struct attention *step, const char *keys_values, long stride, const int64_t *slots, long tokens,
    const int64_t *fresh, long fresh_count, char *pool);

#endif
