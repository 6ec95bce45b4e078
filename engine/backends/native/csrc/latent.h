/* Latent attention in both forms (engine/model/layers/latent.py has the formulas). The same bytes are structures of
ctypes. */

#ifndef LATENT_H
#define LATENT_H

#include "attention_step.h"
#include "elementwise.h"
#include "linear.h"

struct latent {
    int64_t format, heads, query_rank, latent_rank, rope_dim, nope_dim, value_dim;
    double eps;
    const float *query_norm, *norm;     /* [query_rank], or null, and [latent_rank] */
    const struct linear *query;         /* of a query's latent vector; null: queries are there already */
    const struct linear *keys, *values; /* [heads]: nope_dim to latent_rank, and latent_rank to value_dim */
    const struct linear *building;      /* [heads]: latent_rank to nope_dim, of keys */
    const struct linear *then;          /* or null: what is multiplied next */
};

/* Rows of a step's tokens. */
struct rows {
    int64_t first, count;
};

/* A work in the expanded form: its last rows attend to keys and values that are built for them. */
struct expanded_work {
    struct rows rows;
    int64_t keys;
    const int64_t *table;               /* its blocks in the pool */
    const struct attention *attention;  /* over [keys / its block, heads, 2, its block, nope_dim + rope_dim] */
};

/* Buffers for a step's tokens, and how they attend. */
struct latent_buffers {
    char *queries;  /* [tokens, heads, nope_dim + rope_dim] */
    char *absorbed; /* [tokens, heads, latent_rank + rope_dim] */
    char *sums;     /* [tokens, heads, latent_rank] */
    char *vectors;  /* [keys, latent_rank + rope_dim], of the longest expansion */
    char *built;    /* its keys and values */
    const struct rows *absorbing; /* the rows in the absorbed form */
    int64_t absorbing_count;
    const struct expanded_work *expansions;
    int64_t expansion_count;
};

/* A token's row of `down`, `stride` elements after the one before, is what its queries come from, its latent vector, and
   the key that heads share. Latent vectors are normed and the key rotated, in place. */
void latent_finish(
    const struct latent *latent, const struct rotation *rotation, char *down, long stride, long tokens);

/* Attends from the queries of `tokens`, which `down` begins with, to `pool`: `out` is [tokens, heads, value_dim]. The
   queries, or what they come from, may be overwritten. */
void latent_attend(
    const struct latent *latent, const struct latent_buffers *buffers, const struct attention *step,
    const struct attention_params *params, const struct rotation *rotation, char *down, long stride, long tokens,
    const void *pool, char *out);

#endif
