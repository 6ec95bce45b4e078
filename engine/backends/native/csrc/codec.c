/* Encodes KV blocks for transfer between pools, and decodes any wire format into any pool.

   In the pool a layer's block is [vectors, block, width]: keys and values of each KV head. On the wire it has the
   sender's format and block size, or with a codec fp32 scales [vectors, parts] followed by one byte for each value:
   scale = max(|x|) / largest over a part of a vector, q = round(x / scale), x' = q scale (as in kernels/block_copy.py;
   reference: engine/backends/reference/codec.py). The I/O thread calls these functions, which use no other thread.

   Conversions are branch-free arithmetic on bits, so the compiler vectorizes them. Denormals are kept, which vector.h's
   `narrowed` does not do. Wire bytes may be unaligned. */

#include <float.h>

#include "vector.h"

#if defined __AVX512F__ && !defined __clang__
#pragma GCC target("prefer-vector-width=512") /* GCC makes loops of half of that; whole ones take 0.7 times as long */
#endif

enum { FP16 = 2, INT8, FP8 }; /* beside `enum format`; the last two on the wire only */
enum { SCALE = 4 };           /* bytes */

/* One layer of a pool. The parts of a vector, `width` values in all, have a scale each. */
struct codec_pool {
    int64_t format, vectors, block, width, part_count;
    const int64_t *parts;
    char *layer;
};

INLINE long size_of(int format) { return format == FP32 ? 4 : format < INT8 ? 2 : 1; }

/* holds ? a : b without a branch, which could prevent vectorization. */
INLINE uint32_t either(int holds, uint32_t a, uint32_t b) { return b ^ ((a ^ b) & -(uint32_t)holds); }

/* Converts a magnitude of a smaller format to fp32: shifts exponent and fraction by `shift` bits and corrects the bias.
   Below `normal` it is a multiple of `step` (denormal); from `special` on it is infinite or NaN. */
INLINE float expanded(uint32_t magnitude, int shift, uint32_t bias, uint32_t normal, float step, uint32_t special)
{
    const uint32_t moved = (magnitude << shift) + (bias << 23);
    const uint32_t small = bits_of((float)(int32_t)magnitude * step);
    const uint32_t found = either(magnitude < normal, small, moved);
    return float_of(found | either(magnitude < special, 0, 0x7f800000));
}

/* The inverse, rounded to nearest even, for magnitudes within the format's range. A denormal result is a multiple of
   `step`: adding 2^23 steps leaves it in the last bits. */
INLINE uint32_t reduced(uint32_t magnitude, int shift, uint32_t bias, uint32_t normal, float step)
{
    const float ruler = step * 8388608.0f;
    const uint32_t small = bits_of(float_of(magnitude) + ruler) - bits_of(ruler);
    const uint32_t even = (magnitude >> shift) & 1;
    const uint32_t moved = (magnitude - (bias << 23) + (1u << (shift - 1)) - 1 + even) >> shift;
    return either(magnitude < normal, small, moved);
}

INLINE uint32_t half_of(float x)
{
    const uint32_t bits = bits_of(x), magnitude = bits & 0x7fffffff;
    const uint32_t finite = reduced(magnitude, 13, 112, 0x38800000, 0x1p-24f); /* 2^-14 is the least normal one */
    const uint32_t special = either(magnitude > 0x7f800000, 0x7e00, 0x7c00);
    return ((bits >> 16) & 0x8000) | either(magnitude < 0x477ff000, finite, special); /* 65520 is nearer to 2^16 */
}

INLINE uint32_t bfloat_of(float x)
{
    const uint32_t bits = bits_of(x);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return either((bits & 0x7fffffff) > 0x7f800000, (bits >> 16) | 0x40, rounded);
}

/* Bits of element `i`. */
INLINE uint32_t element(int format, const char *from, long i)
{
    if (format == FP32) {
        uint32_t bits;
        memcpy(&bits, from + i * 4, 4);
        return bits;
    }
    if (format == INT8 || format == FP8)
        return (uint8_t)from[i];
    uint16_t bits;
    memcpy(&bits, from + i * 2, 2);
    return bits;
}

INLINE float value_of(int format, uint32_t bits)
{
    switch (format) {
    case FP32:
        return float_of(bits);
    case BF16:
        return float_of(bits << 16);
    case FP16:
        return float_of((bits & 0x8000) << 16 | bits_of(expanded(bits & 0x7fff, 13, 112, 0x400, 0x1p-24f, 0x7c00)));
    case INT8:
        return (float)(int8_t)bits;
    default: /* e4m3 without infinities */
        return float_of((bits & 0x80) << 24 | bits_of(expanded(bits & 0x7f, 20, 120, 8, 0x1p-9f, 0x7f)));
    }
}

INLINE void put(int format, char *to, long i, float x)
{
    if (format == FP32) {
        memcpy(to + i * 4, &x, 4);
    } else {
        const uint16_t bits = format == BF16 ? bfloat_of(x) : half_of(x);
        memcpy(to + i * 2, &bits, 2);
    }
}

/* Magnitude bits; 0 for infinity and NaN, which are leftovers behind the stored tokens. */
INLINE uint32_t finite_magnitude(int format, uint32_t bits)
{
    const uint32_t sign = format == FP32 ? 0x80000000 : 0x8000;
    const uint32_t infinite = format == FP32 ? 0x7f800000 : format == BF16 ? 0x7f80 : 0x7c00;
    return either((bits & (sign - 1)) < infinite, bits & (sign - 1), 0);
}

/* Elements that share a scale: the first `count` of each of `rows`, `stride` elements apart. */
struct part {
    long rows, stride, count;
};

/* Encodes a part as its scale and one byte for each element. */
INLINE void encode(int format, int codec, struct part part, const char *from, char *scale_to, char *to)
{
    uint32_t highest = 0;
    for (long row = 0; row < part.rows; row++)
        for (long i = 0; i < part.count; i++) {
            const uint32_t magnitude = finite_magnitude(format, element(format, from, row * part.stride + i));
            highest = magnitude > highest ? magnitude : highest;
        }
    float scale = value_of(format, highest) / (codec == INT8 ? 127.0f : 448.0f);
    scale = scale > FLT_MIN ? scale : FLT_MIN;
    memcpy(scale_to, &scale, SCALE);
    const float inverse = 1.0f / scale;
    for (long row = 0; row < part.rows; row++, from += part.stride * size_of(format), to += part.stride)
        for (long i = 0; i < part.count; i++) {
            const uint32_t bits = element(format, from, i);
            const uint32_t magnitude = finite_magnitude(format, bits);
            const uint32_t negative = format == FP32 ? bits >> 31 : bits >> 15;
            const float scaled = value_of(format, magnitude) * inverse;
            if (codec == INT8) {
                const int32_t whole = (int32_t)(bits_of(scaled + 8388608.0f) - bits_of(8388608.0f)); /* 2^23's unit: 1 */
                to[i] = (char)((whole ^ -(int32_t)negative) + (int32_t)negative); /* -whole, if it is negative */
            } else {
                const uint32_t rounded = reduced(bits_of(scaled), 20, 120, 0x3c800000, 0x1p-9f); /* 2^-6 and below */
                to[i] = (char)(rounded | either(rounded != 0, negative << 7, 0));
            }
        }
}

INLINE void decode(int format, int form, const char *from, float scale, long count, char *to)
{
    for (long i = 0; i < count; i++) {
        const float x = value_of(form, element(form, from, i));
        put(format, to, i, form == INT8 || form == FP8 ? x * scale : x);
    }
}

/* Calls `CALL(FORMAT)` with a constant for each format that a pool has. */
#define FOR_POOL_FORMATS(format, CALL) \
    switch (format) { \
    case FP32: CALL(FP32); break; \
    case BF16: CALL(BF16); break; \
    default: CALL(FP16); \
    }

INLINE void decode_any(int format, int form, const char *from, float scale, long count, char *to)
{
#define DECODE(FORM) decode(format, FORM, from, scale, count, to)
    if (form == format)
        memcpy(to, from, count * size_of(format));
    else if (form == INT8)
        DECODE(INT8);
    else if (form == FP8)
        DECODE(FP8);
    else
        FOR_POOL_FORMATS(form, DECODE)
#undef DECODE
}

static void encode_into(int format, int codec, struct part part, const char *from, char *scale, char *to)
{
#define TO_INT8(FORMAT) encode(FORMAT, INT8, part, from, scale, to)
#define TO_FP8(FORMAT) encode(FORMAT, FP8, part, from, scale, to)
    if (codec == INT8)
        FOR_POOL_FORMATS(format, TO_INT8)
    else
        FOR_POOL_FORMATS(format, TO_FP8)
#undef TO_INT8
#undef TO_FP8
}

static void decode_into(int format, int form, const char *from, float scale, long count, char *to)
{
#define DECODE(FORMAT) decode_any(FORMAT, form, from, scale, count, to)
    FOR_POOL_FORMATS(format, DECODE)
#undef DECODE
}

/* The elements of `tokens` tokens that share a scale: with a single part, one row of all values. */
INLINE struct part part_of(const struct codec_pool *pool, long tokens, long part)
{
    if (pool->part_count == 1)
        return (struct part){1, 0, tokens * pool->width};
    return (struct part){tokens, pool->width, pool->parts[part]};
}

/* Encodes `count` blocks of the pool with `codec` (INT8 or FP8), one after the other. */
EXPORT void baton_codec_encode(const struct codec_pool *pool, const int64_t *blocks, long count, int codec, char *to)
{
    const long vectors = pool->vectors, values = pool->block * pool->width, size = size_of(pool->format);
    const long scales = pool->part_count * SCALE;
    for (long i = 0; i < count; i++, to += vectors * (scales + values))
        for (long vector = 0; vector < vectors; vector++) {
            const char *from = pool->layer + (blocks[i] * vectors + vector) * values * size;
            char *target = to + vectors * scales + vector * values;
            for (long part = 0, first = 0; part < pool->part_count; first += pool->parts[part++])
                encode_into(
                    pool->format, codec, part_of(pool, pool->block, part), from + first * size,
                    to + vector * scales + part * SCALE, target + first);
        }
}

/* Decodes tokens `begin` … `end` - 1 of a sequence into the pool, where its block table is `table`. The source has blocks
   of `from_block` tokens in `form` (a format or a codec), from token `first` on. Tokens that are contiguous in source
   and pool are converted together. */
EXPORT void baton_codec_decode(
    const struct codec_pool *pool, const int64_t *table, int form, long from_block, const char *from, long first,
    long begin, long end)
{
    const long vectors = pool->vectors, width = pool->width, block = pool->block;
    const long size = size_of(pool->format), from_size = size_of(form);
    const int coded = form == INT8 || form == FP8;
    const long vector_scales = coded ? pool->part_count * SCALE : 0, scales = vectors * vector_scales;
    const long from_bytes = scales + vectors * from_block * width * from_size;
    for (long token = begin, count; token < end; token += count) {
        const long away = (token - first) % from_block, there = token % block;
        const char *source = from + (token - first) / from_block * from_bytes;
        char *target = pool->layer + table[token / block] * vectors * block * width * size;
        count = least(least(from_block - away, block - there), end - token);
        for (long vector = 0; vector < vectors; vector++) {
            const char *values = source + scales + (vector * from_block + away) * width * from_size;
            char *to = target + (vector * block + there) * width * size;
            if (!coded) {
                decode_into(pool->format, form, values, 1, count * width, to);
                continue;
            }
            for (long number = 0, at = 0; number < pool->part_count; at += pool->parts[number++]) {
                const struct part part = part_of(pool, count, number);
                float scale;
                memcpy(&scale, source + vector * vector_scales + number * SCALE, SCALE);
                for (long row = 0; row < part.rows; row++) {
                    const long place = row * part.stride + at;
                    decode_into(pool->format, form, values + place, scale, part.count, to + place * size);
                }
            }
        }
    }
}
