/* KV blocks on their way between pools: what a codec makes of them, and back from any form into any pool.

   A block of a layer is, in the pool, [vectors, block, width]: the keys, and the values, of each KV head. On the wire
   it is the same in the sender's format and block size, or with a codec its scales, fp32 [vectors, parts], and then a
   byte for each value: scale = max(|x|) / largest over a part of a vector, q = round(x / scale), x' = q scale
   (kernels/block_copy.py has the same formula, engine/backends/reference/codec.py the reference). The I/O thread calls these: they share no work with other threads.

   Every conversion is arithmetic on bits, without a branch, which the compiler makes vectors of. Denormal numbers are
   kept, so vector.h's `narrowed` does not serve here. Bytes on the wire may begin anywhere. */

#include <float.h>

#include "vector.h"

#if defined __AVX512F__ && !defined __clang__
#pragma GCC target("prefer-vector-width=512") /* GCC makes loops of half of that; whole ones take 0.7 times as long */
#endif

enum { FP16 = 2, INT8, FP8 }; /* beside `enum format`; the last two on the wire only */
enum { SCALE = 4 };           /* bytes */

/* One layer of a pool. Of each vector's `width` values, the parts, which make up the whole, have a scale each. */
struct codec_pool {
    int64_t format, vectors, block, width, part_count;
    const int64_t *parts;
    char *layer;
};

INLINE long size_of(int format) { return format == FP32 ? 4 : format < INT8 ? 2 : 1; }

INLINE uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

INLINE float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* `a` where it holds, else `b`: of two values at hand. Of `?:` the compiler may make a branch, and then no vectors. */
INLINE uint32_t either(int holds, uint32_t a, uint32_t b) { return b ^ ((a ^ b) & -(uint32_t)holds); }

/* A number of fewer bits as fp32: its exponent and fraction are moved to their places, `shift` bits up, and the
   exponent begins at another bias. Below `normal` it is a multiple of `step`; from `special` on it is infinite or NaN.
 */
INLINE float expanded(uint32_t magnitude, int shift, uint32_t bias, uint32_t normal, float step, uint32_t special)
{
    const uint32_t moved = (magnitude << shift) + (bias << 23);
    const uint32_t small = bits_of((float)(int32_t)magnitude * step);
    const uint32_t found = either(magnitude < normal, small, moved);
    return float_of(found | either(magnitude < special, 0, 0x7f800000));
}

/* The other way, to the nearest, ties to even: of a magnitude that is not beyond the format. Where the result is a
   multiple of `step`, adding 2^23 of them leaves it in the last bits. */
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

/* The element's bits. */
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

/* Of what is finite; 0 for what is not: it is what a block held before, behind the tokens stored. */
INLINE uint32_t finite_magnitude(int format, uint32_t bits)
{
    const uint32_t sign = format == FP32 ? 0x80000000 : 0x8000;
    const uint32_t infinite = format == FP32 ? 0x7f800000 : format == BF16 ? 0x7f80 : 0x7c00;
    return either((bits & (sign - 1)) < infinite, bits & (sign - 1), 0);
}

/* What has one scale: in each of `rows`, `stride` elements apart, the first `count`. */
struct part {
    long rows, stride, count;
};

/* A part in `format`, as its scale and a byte for each element. */
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

INLINE void decode_any(int format, int form, const char *from, float scale, long count, char *to)
{
    if (form == format) {
        memcpy(to, from, count * size_of(format));
        return;
    }
    switch (form) {
    case FP32:
        decode(format, FP32, from, scale, count, to);
        break;
    case BF16:
        decode(format, BF16, from, scale, count, to);
        break;
    case FP16:
        decode(format, FP16, from, scale, count, to);
        break;
    case INT8:
        decode(format, INT8, from, scale, count, to);
        break;
    default:
        decode(format, FP8, from, scale, count, to);
    }
}

static void encode_into(int format, int codec, struct part part, const char *from, char *scale, char *to)
{
    switch (format * 2 + (codec == FP8)) {
    case FP32 * 2:
        encode(FP32, INT8, part, from, scale, to);
        break;
    case FP32 * 2 + 1:
        encode(FP32, FP8, part, from, scale, to);
        break;
    case BF16 * 2:
        encode(BF16, INT8, part, from, scale, to);
        break;
    case BF16 * 2 + 1:
        encode(BF16, FP8, part, from, scale, to);
        break;
    case FP16 * 2:
        encode(FP16, INT8, part, from, scale, to);
        break;
    default:
        encode(FP16, FP8, part, from, scale, to);
    }
}

static void decode_into(int format, int form, const char *from, float scale, long count, char *to)
{
    switch (format) {
    case FP32:
        decode_any(FP32, form, from, scale, count, to);
        break;
    case BF16:
        decode_any(BF16, form, from, scale, count, to);
        break;
    default:
        decode_any(FP16, form, from, scale, count, to);
    }
}

/* What has one scale in `tokens` tokens of a vector: where there is one part, one row of all their values. */
INLINE struct part part_of(const struct codec_pool *pool, long tokens, long part)
{
    if (pool->part_count == 1)
        return (struct part){1, 0, tokens * pool->width};
    return (struct part){tokens, pool->width, pool->parts[part]};
}

/* `count` blocks of the pool as `codec` (INT8 or FP8) has them, one behind the other. */
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

/* Blocks of `from_block` tokens in `form` (a format, or a codec), of which the first begins with token `first` of a
   sequence whose block table in the pool is `table`: tokens `begin` … `end` - 1 go to their places. Tokens that are
   neighbours in both are converted at once. */
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
