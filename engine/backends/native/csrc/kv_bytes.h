/* Dequantizes KV bytes, with a bf16 scale for each token and part of a vector (see engine/model/kv_layout.py). */

#ifndef KV_BYTES_H
#define KV_BYTES_H

#include "attention_step.h"
#include "vector.h"
#if defined __AVX2__
#include <immintrin.h>
#endif

/* e4m3 bits read as fp16 give 2^-8 of the value; the scale makes up for it. */
INLINE float unit_of(const int kv) { return kv == KV_FP8 ? 256 : 1; }

INLINE vec whole_numbers_at(const int kv, const char *from)
{
#if defined __AVX512F__
    const __m128i q = _mm_loadu_si128((const __m128i *)from);
    if (kv == KV_INT8)
        return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q));
    const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(q), 7);
    return (vec)_mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16((short)0xbf80)));
#elif defined __AVX2__ && defined __F16C__
    const __m128i q = _mm_loadl_epi64((const __m128i *)from);
    if (kv == KV_INT8)
        return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q));
    const __m128i wide = _mm_slli_epi16(_mm_cvtepi8_epi16(q), 7);
    return (vec)_mm256_cvtph_ps(_mm_and_si128(wide, _mm_set1_epi16((short)0xbf80)));
#else
    int8_t q __attribute__((vector_size(LANES)));
    memcpy(&q, from, sizeof q);
    const ivec wide = __builtin_convertvector(q, ivec);
    if (kv == KV_INT8)
        return __builtin_convertvector(wide, vec);
    /* The bits as fp32 mean 2^-120 of the number: a product makes it right for those without an exponent, too. */
    return (vec)((wide & 0x7f) << 20 | (wide & (int32_t)0x80000000)) * 0x1p112f;
#endif
}

INLINE vec numbers_at(const int kv, const char *from, long count)
{
    char part[LANES] = {0};
    if (count >= LANES)
        return whole_numbers_at(kv, from);
    memcpy(part, from, count);
    return whole_numbers_at(kv, part);
}

INLINE float scale_at(const char *scales, long token)
{
    uint16_t half;
    memcpy(&half, scales + token * SCALE_BYTES, sizeof half);
    return float_of((uint32_t)half << 16);
}

/* Dequantizes tokens first … end - 1 of a block's vector to `to`, [block, dim]; prefetches as many bytes at `next`. */
INLINE void unpack(
    const int format, const int kv, const struct attention *step, const char *vector, const char *next, long first,
    long end, char *to)
{
    const long dim = step->dim, size = format == FP32 ? 4 : 2, split = first_part(step);
    for (long token = first; token < end; token++) {
        const char *from = vector + token * dim, *scales = vector + step->block * dim;
        char *there = to + token * dim * size;
        for (long begin = 0, part = split; begin < dim; begin = part, part = dim, scales += step->block * SCALE_BYTES) {
            const vec scale = all(scale_at(scales, token) * unit_of(kv));
            long d = begin;
#if defined HAS_PAIRS
            for (; format == BF16 && d + 2 * LANES <= part; d += 2 * LANES) {
                const vec low = numbers_at(kv, from + d, LANES) * scale;
                const uvec both = narrowed_both(low, numbers_at(kv, from + d + LANES, LANES) * scale);
                memcpy(there + d * size, &both, sizeof both);
            }
#endif
            for (; d < part; d += LANES)
                store_first(format, there, d, numbers_at(kv, from + d, part - d) * scale, part - d);
        }
        for (long d = 0; d < dim; d += 64)
            __builtin_prefetch(next + token * dim + d);
    }
}

static void unpack_tokens(
    const struct attention *step, int format, const char *vector, const char *next, long first, long end, char *to)
{
    if (step->kv == KV_INT8)
        BY_FORMAT(format, unpack, KV_INT8, step, vector, next, first, end, to);
    else
        BY_FORMAT(format, unpack, KV_FP8, step, vector, next, first, end, to);
}

#endif
