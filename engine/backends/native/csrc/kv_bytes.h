/* Numbers of a quantized pool: a byte each, with a bf16 scale for each token and part of a vector
   (engine/model/kv_layout.py has the layout and the formula). */

#ifndef KV_BYTES_H
#define KV_BYTES_H

#include "attention_step.h"
#include "vector.h"

typedef int8_t bytes __attribute__((vector_size(LANES)));

/* e4m3 numbers come as 2^-8 of what they are: that is what their bits mean as fp16. It is made up for in the scale. */
INLINE float unit_of(const int kv) { return kv == KV_FP8 ? 256 : 1; }

INLINE vec numbers_of(const int kv, bytes q)
{
#if defined __AVX512F__ && defined __AVX512BW__ && defined __AVX512VL__
    if (kv == KV_INT8)
        return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)q));
    const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16((__m128i)q), 7);
    return (vec)_mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16((short)0xbf80)));
#else
    const ivec wide = __builtin_convertvector(q, ivec);
    if (kv == KV_INT8)
        return __builtin_convertvector(wide, vec);
    /* The bits as fp32 mean 2^-120 of the number: a product makes it right for those without an exponent, too. */
    return (vec)((wide & 0x7f) << 20 | (wide & (int32_t)0x80000000)) * 0x1p112f;
#endif
}

INLINE vec numbers_at(const int kv, const char *from, long count)
{
    bytes q = {0};
    if (count >= LANES)
        memcpy(&q, from, sizeof q);
    else
        memcpy(&q, from, count);
    return numbers_of(kv, q);
}

INLINE float scale_at(const char *scales, long token)
{
    uint16_t half;
    memcpy(&half, scales + token * SCALE_BYTES, sizeof half);
    const uint32_t bits = (uint32_t)half << 16;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

/* Tokens first … end - 1 of a vector of a block, in the format of the step's own numbers, to their places in `to`,
   [block, dim]. Meanwhile as many bytes at `next` are asked for. */
INLINE void unpack(
    const int kv, const int format, const struct attention *step, const char *vector, const char *next, long first,
    long end, char *to)
{
    const long dim = step->dim, size = format == FP32 ? 4 : 2, split = first_part(step);
    for (long token = first; token < end; token++) {
        const char *from = vector + token * dim, *scales = vector + step->block * dim;
        char *there = to + token * dim * size;
        for (long begin = 0, part = split; begin < dim; begin = part, part = dim, scales += step->block * SCALE_BYTES) {
            const vec scale = all(scale_at(scales, token) * unit_of(kv));
            for (long d = begin; d < part; d += LANES)
                store_first(format, there, d, numbers_at(kv, from + d, part - d) * scale, part - d);
        }
        for (long d = 0; d < dim; d += 64)
            __builtin_prefetch(next + token * dim + d);
    }
}

static void unpack_tokens(
    const struct attention *step, const char *vector, const char *next, long first, long end, char *to)
{
    if (step->kv == KV_INT8 && step->format == FP32)
        unpack(KV_INT8, FP32, step, vector, next, first, end, to);
    else if (step->kv == KV_INT8)
        unpack(KV_INT8, BF16, step, vector, next, first, end, to);
    else if (step->format == FP32)
        unpack(KV_FP8, FP32, step, vector, next, first, end, to);
    else
        unpack(KV_FP8, BF16, step, vector, next, first, end, to);
}

#endif
