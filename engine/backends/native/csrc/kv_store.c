/* New keys and values go to their places in the pool. */

#include <string.h>

#include "attention_step.h"

#define PARALLEL_BYTES 65536 /* of keys: a few microseconds of one thread */

EXPORT void baton_store(
    const struct attention *step, const char *keys_values, long stride, const int64_t *slots, long tokens,
    const int64_t *fresh, long fresh_count, char *pool)
{
    const long block = step->block, heads = step->kv_heads, bytes = token_bytes(step), side = block * bytes;
    const long vectors = step->vectors;
    for (long i = 0; i < fresh_count; i++)
        memset(pool + fresh[i] * heads * vectors * side, 0, heads * vectors * side);
#pragma omp parallel for schedule(static) if (tokens * heads * bytes > PARALLEL_BYTES)
    for (long token = 0; token < tokens; token++) {
        const char *from = keys_values + token * stride * (bytes / step->dim);
        for (long part = 0; part < vectors * heads; part++) {
            const long head = part % heads, values = part / heads;
            char *to = pool + ((slots[token] / block * heads + head) * vectors + values) * side + slots[token] % block * bytes;
            memcpy(to, from + part * bytes, bytes);
        }
    }
}
