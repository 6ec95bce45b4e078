/* Latent attention: norms and rotation of what is stored, products of each head, and attention between them. */

#include "kv_bytes.h"
#include "latent.h"

#define WORTH_THREADS 65536 /* bytes to copy; fewer take less time than waking a thread */

void latent_finish(
    const struct latent *latent, const struct rotation *rotation, char *down, long stride, long tokens)
{
    const int format = latent->format;
    const long size = format == FP32 ? 4 : 2, key = stride - latent->rope_dim, vector = key - latent->latent_rank;
    const struct heads query = {
        1, 0, latent->query_rank, stride, tokens, EACH_NORMED, latent->query_norm, latent->eps};
    const struct heads own = {1, 0, latent->latent_rank, stride, tokens, EACH_NORMED, latent->norm, latent->eps};
    const struct heads shared = {1, 0, latent->rope_dim, stride, tokens, NOT_NORMED, 0, 0};
    if (latent->query_norm)
        baton_rotate(format, &query, 0, down);
    baton_rotate(format, &own, 0, down + vector * size);
    baton_rotate(format, &shared, rotation, down + key * size);
}

/* The rotated part of each query goes behind its absorbed part. */
static void place_rotated(
    const struct latent *latent, const char *queries, long stride, struct rows rows, char *absorbed)
{
    const long size = latent->format == FP32 ? 4 : 2, bytes = latent->rope_dim * size, heads = latent->heads;
    const long query = (latent->nope_dim + latent->rope_dim) * size, rank = latent->latent_rank * size;
#pragma omp parallel for schedule(static) if (rows.count * heads * bytes >= WORTH_THREADS)
    for (long token = rows.first; token < rows.first + rows.count; token++)
        for (long head = 0; head < heads; head++)
            memcpy(
                absorbed + (token * heads + head) * (rank + bytes) + rank,
                queries + token * stride * size + (head + 1) * query - bytes, bytes);
}

/* Multiplies each head's part of x by weights of its own. Parts are `x_step` and `y_step` elements apart. */
static void multiply_heads(
    const struct latent *latent, const struct linear *of_head, const char *x, long x_stride, long x_step,
    struct rows rows, char *y, long y_step, const struct linear *then)
{
    const long size = latent->format == FP32 ? 4 : 2, heads = latent->heads;
    struct product products[heads];
    for (long head = 0; head < heads; head++)
        products[head] = (struct product){
            of_head + head, x + (rows.first * x_stride + head * x_step) * size, x_stride, rows.count,
            y + (rows.first * heads + head) * y_step * size, heads * y_step};
    const struct product next = {.layer = then, .rows = rows.count};
    baton_products(products, heads, &next, then != 0);
}

/* Builds the keys and values of one of an expansion's blocks, of which `tokens` are there. */
static void build(const struct latent *latent, const struct attention *step, const char *vectors, long tokens, char *built)
{
    const long size = latent->format == FP32 ? 4 : 2, heads = latent->heads, nope = latent->nope_dim, dim = step->dim;
    const long width = latent->latent_rank + latent->rope_dim, bytes = latent->rope_dim * size;
    const long side = step->block * dim * size;
    struct product products[2 * heads];
    for (long head = 0; head < heads; head++) {
        char *keys = built + head * 2 * side;
        products[2 * head] = (struct product){latent->building + head, vectors, width, tokens, keys, dim};
        products[2 * head + 1] = (struct product){latent->values + head, vectors, width, tokens, keys + side, dim};
    }
    baton_products(products, 2 * heads, 0, 0);
#pragma omp parallel for schedule(static) if (tokens * heads * bytes >= WORTH_THREADS)
    for (long head = 0; head < heads; head++)
        for (long token = 0; token < tokens; token++)
            memcpy(
                built + head * 2 * side + (token * dim + nope) * size,
                vectors + (token * width + latent->latent_rank) * size, bytes);
}

static void attend_expanded(
    const struct latent *latent, const struct latent_buffers *buffers, const struct expanded_work *expansion,
    const struct attention *step, const struct attention_params *params, const char *queries, long stride, const char *pool,
    char *out)
{
    const struct attention *own = expansion->attention;
    const long size = latent->format == FP32 ? 4 : 2, token = (latent->latent_rank + latent->rope_dim) * size;
    for (long at = 0; at < expansion->keys; at += step->block) {
        const char *block = pool + expansion->table[at / step->block] * vector_bytes(step);
        const long tokens = least(step->block, expansion->keys - at);
        if (is_quantized(step))
            unpack_tokens(step, step->format, block, block, 0, tokens, buffers->vectors + at * token);
        else
            memcpy(buffers->vectors + at * token, block, tokens * token);
    }
    for (long at = 0; at < expansion->keys; at += own->block)
        build(
            latent, own, buffers->vectors + at * token, least(own->block, expansion->keys - at),
            buffers->built + at * latent->heads * 2 * own->dim * size);
    baton_attend(
        own, params, queries + expansion->rows.first * stride * size, stride, buffers->built,
        out + expansion->rows.first * latent->heads * latent->value_dim * size);
}

void latent_attend(
    const struct latent *latent, const struct latent_buffers *buffers, const struct attention *step,
    const struct attention_params *params, const struct rotation *rotation, char *down, long stride, long tokens,
    const void *pool, char *out)
{
    const long heads = latent->heads, nope = latent->nope_dim, query = nope + latent->rope_dim;
    const long rank = latent->latent_rank, width = rank + latent->rope_dim, size = latent->format == FP32 ? 4 : 2;
    char *queries = down;
    if (latent->query) {
        baton_linear(latent->query, down, stride, tokens, buffers->queries);
        queries = buffers->queries;
        stride = heads * query;
    }
    const struct heads rotated = {heads, 0, query, stride, tokens, NOT_NORMED, 0, 0};
    baton_rotate(latent->format, &rotated, rotation, queries + nope * size); /* the last numbers of each */
    for (long i = 0; i < buffers->absorbing_count; i++) {
        place_rotated(latent, queries, stride, buffers->absorbing[i], buffers->absorbed);
        multiply_heads(latent, latent->keys, queries, stride, query, buffers->absorbing[i], buffers->absorbed, width, 0);
    }
    if (buffers->absorbing_count)
        baton_attend(step, params, buffers->absorbed, heads * width, pool, buffers->sums);
    for (long i = 0; i < buffers->absorbing_count; i++)
        multiply_heads(
            latent, latent->values, buffers->sums, heads * rank, rank, buffers->absorbing[i], out, latent->value_dim,
            latent->then);
    for (long i = 0; i < buffers->expansion_count; i++)
        attend_expanded(latent, buffers, buffers->expansions + i, step, params, queries, stride, pool, out);
}
