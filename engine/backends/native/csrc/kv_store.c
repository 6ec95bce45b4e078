/* New keys and values go to their places in the pool, as they are, or as a byte for each number and scales. */

#include <float.h>
#include <string.h>

#include "attention_step.h"
#include "vector.h"

#define PARALLEL_BYTES 65536 /* of keys: a few microseconds of one thread */

typedef uint8_t bytes_out __attribute__((vector_size(LANES)));

INLINE uvec either(ivec holds, uvec a, uvec b) { return ((uvec)holds & a) | (~(uvec)holds & b); }

/* x / scale as a byte: to the nearest, ties to even. */
INLINE bytes_out rounded_to_bytes(const int kv, vec scaled)
{
    if (kv == KV_INT8) { /* beside 1.5 x 2^23 the last byte is the nearest whole number's */
        const uvec bits = (uvec)(scaled + 12582912.0f);
        return __builtin_convertvector(bits & 0xff, bytes_out);
    }
    const uvec magnitude = (uvec)scaled & 0x7fffffff, sign = (uvec)scaled >> 24 & 0x80;
    /* Below 2^-6 numbers are multiples of 2^-9: those that 2^14 has in its last bits. */
    const uvec small = (uvec)((vec)magnitude + 16384.0f) - 0x46800000u;
    const uvec large = (magnitude - (120u << 23) + 0x7ffff + (magnitude >> 20 & 1)) >> 20;
    const uvec found = either((ivec)magnitude < 0x3c800000, small, large);
    return __builtin_convertvector(found | sign, bytes_out);
}

/* `count` numbers of a part of a token's vector, as bytes at `to` and a scale at `scale_to`. */
INLINE void quantize(const int kv, const int format, const char *from, long first, long count, char *to, char *scale_to)
{
    uvec highest = {0};
    for (long i = 0; i < count; i += LANES) {
        const uvec magnitude = (uvec)load_first(format, from, first + i, count - i) & 0x7fffffff;
        highest = either((ivec)(magnitude > highest), magnitude, highest);
    }
    uint32_t bits = 0;
    for (int lane = 0; lane < LANES; lane++)
        bits = highest[lane] > bits ? highest[lane] : bits;
    const int strange = bits >= 0x7f800000;
    const float scale = float_of(bits) / (kv == KV_INT8 ? 127.0f : 448.0f);
    bits = bits_of(scale > FLT_MIN ? scale : FLT_MIN);
    bits = strange ? 0x7fc00000 : (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    const uint16_t half = bits >> 16;
    memcpy(scale_to, &half, sizeof half);
    const float inverse = 1 / float_of(bits);
    for (long i = 0; i < count; i += LANES) {
        const vec x = load_first(format, from, first + i, count - i);
        const bytes_out q = rounded_to_bytes(kv, strange ? (vec){0} : x * all(inverse));
        memcpy(to + i, &q, least(LANES, count - i));
    }
}

/* A token's numbers of a vector; `vector` is the vector's place in its block. */
INLINE void store_bytes(
    const int format, const int kv, const struct attention *step, const char *from, char *vector, long offset)
{
    const long dim = step->dim, first = first_part(step);
    char *to = vector + offset * dim, *scales = vector + step->block * dim + offset * SCALE_BYTES;
    quantize(kv, format, from, 0, first, to, scales);
    if (first < dim)
        quantize(kv, format, from, first, dim - first, to + first, scales + step->block * SCALE_BYTES);
}

static void store_vector(const struct attention *step, const char *from, char *vector, long offset)
{
    if (!is_quantized(step))
        memcpy(vector + offset * token_bytes(step), from, token_bytes(step));
    else if (step->kv == KV_INT8)
        BY_FORMAT(step->format, store_bytes, KV_INT8, step, from, vector, offset);
    else
        BY_FORMAT(step->format, store_bytes, KV_FP8, step, from, vector, offset);
}

EXPORT void baton_store(
    const struct attention *step, const char *keys_values, long stride, const int64_t *slots, long tokens,
    const int64_t *fresh, long fresh_count, char *pool)
{
    const long block = step->block, heads = step->kv_heads, bytes = token_bytes(step), side = vector_bytes(step);
    const long vectors = step->vectors;
    for (long i = 0; i < fresh_count; i++)
        memset(pool + fresh[i] * heads * vectors * side, 0, heads * vectors * side);
#pragma omp parallel for schedule(static) if (tokens * heads * bytes > PARALLEL_BYTES)
    for (long token = 0; token < tokens; token++) {
        const char *from = keys_values + token * stride * (bytes / step->dim);
        for (long part = 0; part < vectors * heads; part++) {
            const long head = part % heads, values = part / heads;
            char *to = pool + ((slots[token] / block * heads + head) * vectors + values) * side;
            store_vector(step, from + part * bytes, to, slots[token] % block);
        }
    }
}
