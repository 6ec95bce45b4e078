/* Holds what a step of attention is told, how its work is cut, and what other files call of it. It includes none of
   attention's own files: attention.c, attention_bf16.h, attention_fp32.h and softmax.h include it. The same bytes are
   structures of ctypes and numpy. */

#ifndef ATTENTION_STEP_H
#define ATTENTION_STEP_H

#include <stdint.h>

#define TILE 128     /* positions of one softmax, from a multiple of TILE on; a multiple of every block size */
#define MAX_BLOCK 64
#define MAX_DIM 576 /* of a latent vector and a rotated key */
#define MAX_ROWS 192 /* of a unit: they share what is prepared of its keys and values */
#define MAX_ROW_NUMBERS (128 * MAX_DIM) /* of the queries of a unit's rows */
#define KV_INT8 3    /* formats of pools beside `enum format`; library.py has the same numbers */
#define KV_FP8 4
#define SCALE_BYTES 2
#define GROUP 32     /* rows whose scores are in the first cache together */

#if !defined EXPORT
#define EXPORT __attribute__((visibility("default")))
#endif

/* Rows of one work, and the positions that they are to see. Rows are the work's tokens, times the query heads that share
   a KV head; a unit is done once for each KV head. */
struct unit {
    int64_t work;       /* row of the block table */
    int64_t token;      /* the batch's row of the work's first token … */
    int64_t position;   /* … and its position in the sequence */
    int64_t first;      /* first row of the unit */
    int64_t rows;
    int64_t begin, end; /* tiles: from begin x TILE to end x TILE */
    int64_t partial;    /* where the rows' states of all tiles lie in `partials`, or -1: this unit has all the tiles */
};

/* A KV head has a key and a value of each token, two vectors; or one of `dim` numbers, of which the first `value_dim` are
   the value as well. */
struct attention {
    int64_t format, kv; /* of what is computed with, and of the pool: the same, or KV_INT8 or KV_FP8 */
    int64_t kv_heads, vectors, shared, dim, value_dim, block;
    int64_t window;        /* positions that a query sees, its own included; 0: all */
    const int64_t *tables; /* [works, table_stride] */
    int64_t table_stride;
    const struct unit *units;
    int64_t unit_count;
    float *partials; /* null where no unit has one */
    const struct tree_sight *sights; /* [tokens] of guesses that branch; null: a token sees all up to itself */
};

/* What a token sees that is, or is beside, a guess that branches (engine/model/trees.py): of its sequence's places all up
   to `last`, and behind it last + 1 + j where bit j is set. Its own place is the last that it sees. */
struct tree_sight {
    int64_t position; /* which a window is counted back from */
    int64_t last;
    uint64_t bits;
};

/* What one layer does in its own way. */
struct manner {
    double scale;       /* of scores */
    double softcap;     /* a score s becomes softcap x tanh(s / softcap); 0: it stays */
    const float *sinks; /* [heads], scores of a key whose value is 0; or null */
};

/* Floats of a row of sums: whole vectors. */
static inline int64_t state_width(const struct attention *step) { return (step->value_dim + 63) / 64 * 64; }
/* Bytes of one token's key, or value, of one head, as it is computed with. */
static inline int64_t token_bytes(const struct attention *step) { return step->dim * (step->format ? 2 : 4); }
/* Bytes of a block's keys: where its values begin, if they are not the keys themselves. In a quantized pool that holds
   for what was unpacked. */
static inline int64_t value_place(const struct attention *step)
{
    return (step->vectors - 1) * step->block * token_bytes(step);
}
static inline int is_quantized(const struct attention *step) { return step->kv >= KV_INT8; }
/* Numbers of a vector that share its first scale: a latent vector has one, and the key behind it another. */
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
/* What a unit's row is counted from where its rows' first position is asked for: of guesses that branch, later ones may
   stand before earlier ones, but none before the work's first token. */
static inline int64_t earliest(const struct attention *step, const struct unit *unit, int64_t row)
{
    return unit->position + (step->sights ? 0 : (unit->first + row) / step->shared);
}
/* The first tile of which a unit's rows see something: where the first of its units, if there are several, begins. */
static inline int64_t first_tile(const struct attention *step, const struct unit *unit)
{
    return begin_of(step, earliest(step, unit, 0)) / TILE;
}

/* Positions of a tile: first … end - 1. */
struct span {
    int64_t first, end;
};

/* Positions of a tile in the middle of a row's span that it does not see, a bit for each. */
struct hidden {
    uint64_t words[TILE / 64];
};

/* What a group of rows sees of a tile, all together and each. */
struct sight {
    struct span all, row[GROUP];
    const struct hidden *hidden; /* [GROUP], or null: nothing is */
};

/* See softmax.h; `sums` is [rows, state_width]. */
struct state {
    float *maximum, *total, *sums;
};

/* `queries` [tokens, heads, dim] with `query_stride` elements between tokens; `out` [tokens, heads, value_dim],
   contiguous. */
EXPORT void baton_attend(
    const struct attention *step, const struct manner *manner, const void *queries, long query_stride, const void *pool,
    void *out);

/* `keys_values` [tokens, vectors x kv_heads, dim], keys before values, `stride` elements between tokens, go to `slots`
   (block x block size + offset). Blocks that a sequence enters are cleared first: a block leaves this worker whole, and
   must not take along what its last owner left. */
EXPORT void baton_store(
    const struct attention *step, const char *keys_values, long stride, const int64_t *slots, long tokens,
    const int64_t *fresh, long fresh_count, char *pool);

#endif
