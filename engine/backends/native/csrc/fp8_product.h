/* A block of rows of bf16 times a panel of fp8 (e4m3), where the processor multiplies bf16: every number of fp8 is one of
   bf16, and none a denormal one, which the instructions would take for 0. A block of the depth becomes bf16, once for all
   the rows, and its sums are multiplied by the scales of its group before they are added up. */

#ifndef FP8_PRODUCT_H
#define FP8_PRODUCT_H

#include "product_bf16.h"
#include "quantized_panel.h"

#if defined HAS_BF16_PRODUCT
#define FP8_DEPTH_BLOCK 128 /* stays in the first cache, and is the usual group */

/* Whether groups are whole steps of the depth. */
INLINE int is_fp8_in_bf16(const struct linear *layer)
{
    return layer->format == BF16 && layer->weights == FP8 && layer->group % UNIT == 0;
}

/* Codes, each at the top of 16 bits, as bf16. */
INLINE __m512i bf16_of_fp8(__m512i codes)
{
    const __m512i low = _mm512_castsi256_si512( /* 0 … 7 times 2^-9 */
        _mm256_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60, 0, 0, 0, 0, 0, 0, 0, 0));
    const __m512i size = _mm512_and_si512(codes, _mm512_set1_epi16(0x7f00));
    const __m512i normal = _mm512_add_epi16(_mm512_srli_epi16(size, 4), _mm512_set1_epi16(120 << 7));
    const __mmask32 is_low = _mm512_cmplt_epu16_mask(size, _mm512_set1_epi16(0x0800));
    const __mmask32 is_nan = _mm512_cmpeq_epi16_mask(size, _mm512_set1_epi16(0x7f00));
    __m512i found = _mm512_mask_permutexvar_epi16(normal, is_low, _mm512_srli_epi16(size, 8), low);
    found = _mm512_mask_mov_epi16(found, is_nan, _mm512_set1_epi16(0x7fc0));
    return _mm512_ternarylogic_epi32(found, codes, _mm512_set1_epi16((short)0x8000), 0xf8); /* found | codes & sign */
}

/* `depth` inputs of a panel, a multiple of 4, as bf16 [depth / 2][PANEL][2]. */
static void widen_fp8(const char *codes, long depth, uint16_t *words)
{
    const __m512i first = _mm512_set4_epi32(0x0d800c80, 0x09800880, 0x05800480, 0x01800080); /* 0x80: becomes 0 */
    const __m512i second = _mm512_add_epi8(first, _mm512_set1_epi32(0x02000200));
    for (long k = 0; k < depth; k += 4)
        for (long column = 0; column < PANEL; column += LANES, codes += 64) {
            const __m512i group = _mm512_loadu_si512(codes);
            __builtin_prefetch(codes + FP8_DEPTH_BLOCK * PANEL, 0, 2);
            uint16_t *to = words + k * PANEL + column * 2;
            _mm512_storeu_si512(to, bf16_of_fp8(_mm512_shuffle_epi8(group, first)));
            _mm512_storeu_si512(to + 2 * PANEL, bf16_of_fp8(_mm512_shuffle_epi8(group, second)));
        }
}

/* sums += scales x part, or 0 with `fresh` in place of the sums; both are [rows, PANEL]. */
INLINE void add_scaled(const float *part, const float *scales, long rows, int fresh, float *sums)
{
    for (long at = 0; at < rows * PANEL; at += LANES) {
        const vec before = fresh ? (vec){0} : load(FP32, sums, at);
        store(FP32, sums, at, fused(load(FP32, part, at), load(FP32, scales, at % PANEL), before));
    }
}

/* sums [rows, PANEL] = `rows` rows of x, `x_stride` elements apart, times a panel; of an output's scale nothing yet. */
static void multiply_fp8(
    const struct linear *layer, const uint16_t *x, long x_stride, long rows, const char *panel, struct beside *beside,
    float *sums)
{
    uint16_t words[FP8_DEPTH_BLOCK * PANEL] __attribute__((aligned(64)));
    uint16_t last[STRIP * FP8_DEPTH_BLOCK] __attribute__((aligned(64)));
    float part[STRIP * PANEL] __attribute__((aligned(64)));
    const long group = group_of(layer);
    for (long begin = 0, depth; begin < layer->inputs; begin += depth) {
        const long inside = least(group, whole_units(layer) - begin / group * group);
        const char *own = panel + begin / group * group_bytes(layer);
        const float *scales = (const float *)(own + codes_bytes(layer, inside));
        depth = least(FP8_DEPTH_BLOCK, inside - begin % group);
        widen_fp8(own + codes_bytes(layer, begin % group), depth, words);
        const long there = least(depth, layer->inputs - begin);
        for (long row = 0; row < rows; row += STRIP) {
            const long count = least(rows - row, STRIP);
            const uint16_t *own_x = x + row * x_stride + begin;
            long stride = x_stride;
            if (there < depth) { /* behind a row there may be anything */
                memset(last, 0, count * depth * sizeof *last);
                for (long r = 0; r < count; r++)
                    memcpy(last + r * depth, own_x + r * x_stride, there * sizeof *last);
                own_x = last;
                stride = depth;
            }
            if (layer->group) {
                add_strip(own_x, stride, count, words, depth, 1, beside, part);
                add_scaled(part, scales, count, begin == 0, sums + row * PANEL);
            } else {
                add_strip(own_x, stride, count, words, depth, begin == 0, beside, sums + row * PANEL);
            }
        }
    }
}
#endif

#endif
