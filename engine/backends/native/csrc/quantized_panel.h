/* Panels of quantized weights: group after group, each with its codes, then its scales, then its offsets.

   INT8 and FP8 codes are [input / 4][PANEL][4], INT4 codes [input / 8][PANEL][4]: of eight neighbouring inputs the first
   four are the low halves of the bytes. So 4 bytes of an output fit the instructions for byte products. The depth is padded
   to whole units, where x is zero. */

#ifndef QUANTIZED_PANEL_H
#define QUANTIZED_PANEL_H

#include "linear.h"
#include "product.h"

#if defined __aarch64__ || (defined __AVX2__ && defined __F16C__ && (LANES == 8 || defined __AVX512BW__))
#define HAS_INT8_PRODUCT /* of rows in int8, with bf16 */
#if defined __aarch64__
#define HAS_VNNI /* or what does the same: product_int8.h */
#else
#include <immintrin.h>
#endif
#if LANES == 8 ? defined __AVXVNNI__ : defined __AVX512VNNI__
#define HAS_VNNI
#endif
#define INT8_ROWS 3 /* of a tile: whole sums and scaled ones in registers */
#endif
#define UNIT 32 /* inputs, of a row of x in int8, that share a scale; half of it in odd groups */

INLINE int is_quantized(const struct linear *layer)
{
    return layer->weights == INT8 || layer->weights == INT4 || layer->weights == FP8;
}

/* Whether x is quantized to int8 first. */
INLINE int takes_int8(const struct linear *layer)
{
#if defined HAS_INT8_PRODUCT
    return layer->format == BF16 && (layer->weights == INT8 || layer->weights == INT4);
#else
    (void)layer;
    return 0;
#endif
}

/* Planes of a row of x: its codes, and for signed products without VNNI their magnitudes and signs, 0 or -1. */
INLINE int planes_of(const struct linear *layer)
{
#if defined HAS_VNNI
    return 1;
#else
    return layer->weights == INT8 ? 3 : 1;
#endif
}

INLINE long unit_of(const struct linear *layer)
{
#if defined HAS_VNNI
    const int small = 0;
#else
    const int small = layer->table != 0; /* so that sums of a table's values fit in 16 bits */
#endif
    return layer->group % UNIT || small ? UNIT / 2 : UNIT;
}

/* VNNI takes unsigned codes: INT8 codes are shifted by 128. */
INLINE long code_zero(const struct linear *layer)
{
#if defined HAS_VNNI
    return layer->zero + (takes_int8(layer) && layer->weights == INT8 ? 128 : 0);
#else
    return layer->zero;
#endif
}

INLINE long whole_units(const struct linear *layer) { return rounded_up(layer->inputs, unit_of(layer)); }
INLINE long group_of(const struct linear *layer) { return layer->group ? layer->group : whole_units(layer); }
INLINE long codes_bytes(const struct linear *layer, long depth) { return depth * PANEL / (layer->weights == INT4 ? 2 : 1); }
INLINE long scale_bytes(const struct linear *layer) { return takes_int8(layer) ? 2 : 4; }
INLINE long scales_bytes(const struct linear *layer)
{
    return layer->group ? PANEL * scale_bytes(layer) * (layer->offsets ? 2 : 1) : 0;
}
INLINE long group_bytes(const struct linear *layer) { return codes_bytes(layer, group_of(layer)) + scales_bytes(layer); }
INLINE long quantized_panel_bytes(const struct linear *layer)
{
    const long depth = whole_units(layer), group = group_of(layer), groups = rounded_up(depth, group) / group;
    return codes_bytes(layer, depth) + groups * scales_bytes(layer);
}

/* The bytes of one output at some depth: of 4 inputs, or of 8 in halves. */
INLINE void pack_codes(const struct linear *layer, const char *weight, long output, long k, char *to)
{
    const long there = output < layer->outputs ? layer->inputs : 0, added = code_zero(layer) - layer->zero;
    for (long i = 0; i < 4; i++) {
        const char low = k + i < there ? weight[output * layer->inputs + k + i] : 0;
        const char high = layer->weights == INT4 && k + 4 + i < there ? weight[output * layer->inputs + k + 4 + i] : 0;
        to[i] = (low | high << 4) + added;
    }
}

/* One number of each output of a panel; `numbers` is [outputs, groups]. */
INLINE void pack_scales(const struct linear *layer, const float *numbers, long output, long group, long groups, char *to)
{
    for (long column = 0; column < PANEL; column++) {
        const float number = output + column < layer->outputs ? numbers[(output + column) * groups + group] : 0;
#if defined HAS_INT8_PRODUCT
        if (takes_int8(layer)) {
#if defined __aarch64__
            const __fp16 half = number;
#else
            const uint16_t half = _cvtss_sh(number, 0);
#endif
            memcpy(to + column * sizeof half, &half, sizeof half);
            continue;
        }
#endif
        memcpy(to + column * sizeof number, &number, sizeof number);
    }
}

static void pack_quantized(
    const struct linear *layer, const char *weight, const float *scales, const float *offsets, long output, char *to)
{
    const long depth = whole_units(layer), group = group_of(layer), groups = rounded_up(depth, group) / group;
    for (long first = 0; first < depth; first += group) {
        for (long k = first; k < least(depth, first + group); k += layer->weights == INT4 ? 8 : 4)
            for (long column = 0; column < PANEL; column++, to += 4)
                pack_codes(layer, weight, output + column, k, to);
        if (layer->group)
            pack_scales(layer, scales, output, first / group, groups, to);
        if (layer->offsets)
            pack_scales(layer, offsets, output, first / group, groups, to + PANEL * scale_bytes(layer));
        to += scales_bytes(layer);
    }
}

#if defined HAS_INT8_PRODUCT
/* Numbers of 16 bits. */
INLINE vec load_half(const char *numbers, long at)
{
#if LANES == 16
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(numbers + at * 2)));
#elif defined __aarch64__
    return vcvt_f32_f16(vld1_f16((const __fp16 *)(numbers + at * 2)));
#else
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(numbers + at * 2)));
#endif
}
#endif

INLINE vec looked_up(const float *table, ivec codes)
{
    vec found;
    for (int lane = 0; lane < LANES; lane++)
        found[lane] = table[codes[lane]];
    return found;
}

/* Dequantizes e4m3 codes 0 … 255; magnitude 127 is NaN. */
INLINE vec fp8_numbers(ivec codes)
{
    const ivec size = codes & 127;
    const vec low = __builtin_convertvector(size, vec) * 0x1p-9f, normal = (vec)((size << 20) + (120 << 23));
    const vec found = chosen(size < 8, low, chosen(size == 127, all(NAN), normal));
    return (vec)((ivec)found | (codes & 128) << 24);
}

/* Dequantizes `depth` inputs from `begin` (a multiple of 8) on to fp32 [depth, rounded up][PANEL], without output scales. */
static void widen_quantized(const struct linear *layer, const char *panel, long begin, long depth, float *wide)
{
    const int halves = layer->weights == INT4;
    const long group = group_of(layer), scales = codes_bytes(layer, group), step = halves ? 8 : 4;
    for (long k = begin; k < begin + depth; k += step, wide += step * PANEL) {
        const char *own = panel + k / group * group_bytes(layer), *codes = own + codes_bytes(layer, k % group);
        const long inside = least(group, whole_units(layer) - k / group * group);
        const char *own_scales = own + (inside == group ? scales : codes_bytes(layer, inside));
        for (long column = 0; column < PANEL; column += LANES) {
            const vec scale = layer->group ? load(FP32, own_scales, column) : all(1);
            const vec offset = layer->offsets ? load(FP32, own_scales + PANEL * scale_bytes(layer), column)
                                              : -(scale * (float)layer->zero);
            uvec word;
            memcpy(&word, codes + column * 4, sizeof word);
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                if (i >= step)
                    break;
                const ivec code = halves ? (ivec)(word >> (i < 4 ? 8 * i : 8 * i - 28) & 15) : (ivec)(word << (24 - 8 * i)) >> 24;
                const vec number = layer->weights == FP8 ? fp8_numbers(code)
                                   : layer->table        ? looked_up(layer->table, code)
                                                         : __builtin_convertvector(code, vec);
                store(FP32, wide, i * PANEL + column, number * scale + offset);
            }
        }
    }
}

#endif
