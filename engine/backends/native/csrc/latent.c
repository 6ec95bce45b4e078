/* Latent attention: norms and rotation of what is stored, products of each head, and attention between them. */

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
static void place_rotated(const struct latent *latent, const char *queries, long stride, long tokens, char *absorbed)
{
    const long size = latent->format == FP32 ? 4 : 2, bytes = latent->rope_dim * size, heads = latent->heads;
    const long query = (latent->nope_dim + latent->rope_dim) * size, rank = latent->latent_rank * size;
#pragma omp parallel for schedule(static) if (tokens * heads * bytes >= WORTH_THREADS)
    for (long token = 0; token < tokens; token++)
        for (long head = 0; head < heads; head++)
            memcpy(
                absorbed + (token * heads + head) * (rank + bytes) + rank,
                queries + token * stride * size + (head + 1) * query - bytes, bytes);
}

/* Multiplies each head's part of x by weights of its own. Parts are `x_step` and `y_step` elements apart. */
static void multiply_heads(
    const struct latent *latent, const struct linear *of_head, const char *x, long x_stride, long x_step, long tokens,
    char *y, long y_step, const struct linear *then)
{
    const long size = latent->format == FP32 ? 4 : 2, heads = latent->heads;
    struct product products[heads];
    for (long head = 0; head < heads; head++)
        products[head] = (struct product){
            of_head + head, x + head * x_step * size, x_stride, tokens, y + head * y_step * size, heads * y_step};
    const struct product next = {.layer = then, .rows = tokens};
    baton_products(products, heads, &next, then != 0);
}

void latent_attend(
    const struct latent *latent, const struct latent_room *room, const struct attention *step,
    const struct manner *manner, const struct rotation *rotation, char *down, long stride, long tokens,
    const void *pool, char *out)
{
    const long heads = latent->heads, nope = latent->nope_dim, query = nope + latent->rope_dim;
    const long rank = latent->latent_rank, width = rank + latent->rope_dim, size = latent->format == FP32 ? 4 : 2;
    char *queries = down;
    if (latent->query) {
        baton_linear(latent->query, down, stride, tokens, room->queries);
        queries = room->queries;
        stride = heads * query;
    }
    const struct heads rotated = {heads, 0, query, stride, tokens, NOT_NORMED, 0, 0};
    baton_rotate(latent->format, &rotated, rotation, queries + nope * size); /* the last numbers of each */
    place_rotated(latent, queries, stride, tokens, room->absorbed);
    multiply_heads(latent, latent->keys, queries, stride, query, tokens, room->absorbed, width, 0);
    baton_attend(step, manner, room->absorbed, heads * width, pool, room->sums);
    multiply_heads(
        latent, latent->values, room->sums, heads * rank, rank, tokens, out, latent->value_dim, latent->then);
}
