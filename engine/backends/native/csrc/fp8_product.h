/* A block of bf16 rows times a panel of fp8 (e4m3). Every fp8 value is a normal bf16 value. A block of the depth is
   converted to bf16 once for all rows and multiplied like a bf16 panel; the group's scales multiply the partial sums. */

#ifndef FP8_PRODUCT_H
#define FP8_PRODUCT_H

#include "product_bf16.h"
#include "quantized_panel.h"
#include "wide_product.h"

#if defined __AVX512BW__ || (LANES == 8 && defined __AVX2__) || defined __aarch64__
#if !defined __aarch64__
#include <immintrin.h>
#endif
#define HAS_FP8_PRODUCT
#define FP8_DEPTH_BLOCK 128 /* stays in the first cache, and is the usual group */

/* Whether scale groups are whole steps of the depth. */
INLINE int takes_fp8(const struct linear *layer)
{
    return layer->format == BF16 && layer->weights == FP8 && layer->group % UNIT == 0;
}

#if defined __AVX512BW__
/* Converts codes, each in the upper byte of 16 bits, to bf16. */
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
#endif

#define FP8_AHEAD 8192 /* prefetch distance, in bytes */

#if defined __AVX512VBMI__ && defined __AVX512BW__
/* Low and high bytes of the 128 non-negative values as bf16: codes 0 … 63 and 64 … 127. */
INLINE void list_bytes(__m512i low[2], __m512i high[2])
{
    __m256i parts[2][4];
    const ivec lanes = LANE_NUMBERS;
    const __m512i first = _mm512_or_si512( /* words 0 … 31, each at the top of 16 bits */
        _mm512_slli_epi32((__m512i)(lanes * 2), 8), _mm512_slli_epi32((__m512i)(lanes * 2 + 1), 24));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512i words = bf16_of_fp8(_mm512_add_epi16(first, _mm512_set1_epi16((short)(i * 32 << 8))));
        parts[0][i] = _mm512_cvtepi16_epi8(words);
        parts[1][i] = _mm512_cvtepi16_epi8(_mm512_srli_epi16(words, 8));
    }
    for (int i = 0; i < 2; i++) {
        low[i] = _mm512_inserti64x4(_mm512_castsi256_si512(parts[0][2 * i]), parts[0][2 * i + 1], 1);
        high[i] = _mm512_inserti64x4(_mm512_castsi256_si512(parts[1][2 * i]), parts[1][2 * i + 1], 1);
    }
}

/* As `widen_fp8`, by table lookup of single bytes. */
static __attribute__((noinline)) void look_up_fp8(const char *codes, long depth, uint16_t *words)
{
    const __m512i pairs = _mm512_broadcast_i32x4( /* of four columns: inputs 0 and 1, then 2 and 3 */
        _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    __m512i lows[2], highs[2];
    list_bytes(lows, highs);
    for (long k = 0; k < depth; k += 4)
        for (long column = 0; column < PANEL; column += LANES, codes += sizeof(__m512i)) {
            uint16_t *to = words + k * PANEL + column * 2;
            _mm_prefetch(codes + FP8_AHEAD, _MM_HINT_T1);
            const __m512i group = _mm512_shuffle_epi8(_mm512_loadu_si512(codes), pairs);
            const __m512i low = _mm512_permutex2var_epi8(lows[0], group, lows[1]);
            const __m512i size = _mm512_permutex2var_epi8(highs[0], group, highs[1]);
            const __m512i high = _mm512_ternarylogic_epi32(size, group, _mm512_set1_epi8((char)0x80), 0xf8);
            _mm512_storeu_si512(to, _mm512_unpacklo_epi8(low, high));
            _mm512_storeu_si512(to + 2 * PANEL, _mm512_unpackhi_epi8(low, high));
        }
}
#define HAS_LOOK_UP
#define FEW_LOOKED_UP 2 /* rows: for more, lookup was measured to be slower */
#endif

/* Converts `depth` inputs of a panel, a multiple of 4, to bf16 [depth / 2][PANEL][2]. */
#if defined __AVX512BW__
static void widen_fp8(const char *codes, long depth, uint16_t *words)
{
    const __m128i first = _mm_setr_epi32(0x01800080, 0x05800480, 0x09800880, 0x0d800c80); /* 0x80: becomes 0 */
    const __m128i second = _mm_add_epi8(first, _mm_set1_epi32(0x02000200));
    for (long k = 0; k < depth; k += 4)
        for (long column = 0; column < PANEL; column += LANES, codes += sizeof(__m512i)) {
            const __m512i group = _mm512_loadu_si512(codes);
            _mm_prefetch(codes + FP8_AHEAD, _MM_HINT_T1);
            uint16_t *to = words + k * PANEL + column * 2;
            _mm512_storeu_si512(to, bf16_of_fp8(_mm512_shuffle_epi8(group, _mm512_broadcast_i32x4(first))));
            _mm512_storeu_si512(to + 2 * PANEL, bf16_of_fp8(_mm512_shuffle_epi8(group, _mm512_broadcast_i32x4(second))));
        }
}
#else
/* Converts four inputs of LANES outputs to bf16, two pairs [LANES][2]. */
#if defined __aarch64__
INLINE void pairs_of_fp8(const char *codes, uvec pairs[2])
{
    typedef uint16_t words __attribute__((vector_size(16)));
    const uint8x16_t low = {0, 0, 0, 0x3b, 0x80, 0x3b, 0xc0, 0x3b, 0, 0x3c, 0x20, 0x3c, 0x40, 0x3c, 0x60, 0x3c};
    const uvec upper = {0x01ff00ff, 0x05ff04ff, 0x09ff08ff, 0x0dff0cff}; /* 0xff: becomes 0 */
    const uint8x16_t group = vld1q_u8((const uint8_t *)codes);
    __builtin_prefetch(codes + FP8_AHEAD, 0, 2);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        const words code = (words)vqtbl1q_u8(group, (uint8x16_t)(upper + i * 0x02000200)), size = code & 0x7f00;
        const words of_low = (words)vqtbl1q_u8(low, (uint8x16_t)((size >> 8) * 0x0202 + 0x0100)); /* 0 of higher ones */
        const words normal = ((size >> 4) + (120 << 7)) & (words)(size >= 0x0800), nan = (words)(size == 0x7f00) & 0x7fc0;
        pairs[i] = (uvec)(of_low | normal | nan | (code & 0x8000));
    }
}
#else
INLINE void pairs_of_fp8(const char *codes, uvec pairs[2]) /* low and high bytes separately */
{
    const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    const __m256i low_table = _mm256_broadcastsi128_si256( /* 0 … 7 times 2^-9 */
        _mm_setr_epi8(0, 0, (char)0x80, (char)0xc0, 0, 0x20, 0x40, 0x60, 0, 0, 0, 0, 0, 0, 0, 0));
    const __m256i high_table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, 0, 0, 0, 0, 0, 0, 0, 0));
    const __m256i sign = _mm256_set1_epi8((char)0x80);
    __m256i group;
    memcpy(&group, codes, sizeof group);
    _mm_prefetch(codes + FP8_AHEAD, _MM_HINT_T1);
    group = _mm256_shuffle_epi8(group, order);
    const __m256i size = _mm256_andnot_si256(sign, group);
    const __m256i is_low = _mm256_cmpgt_epi8(_mm256_set1_epi8(8), size);
    const __m256i is_nan = _mm256_cmpeq_epi8(size, _mm256_set1_epi8(0x7f));
    const __m256i fraction = _mm256_and_si256(_mm256_slli_epi16(size, 4), _mm256_set1_epi8((char)0xf0));
    const __m256i exponent = _mm256_add_epi8(
        _mm256_and_si256(_mm256_srli_epi16(size, 4), _mm256_set1_epi8(7)), _mm256_set1_epi8(0x3c));
    const __m256i low = _mm256_blendv_epi8(fraction, _mm256_shuffle_epi8(low_table, size), is_low);
    __m256i high = _mm256_blendv_epi8(exponent, _mm256_shuffle_epi8(high_table, size), is_low);
    high = _mm256_or_si256(_mm256_or_si256(high, is_nan), _mm256_and_si256(group, sign));
    pairs[0] = (uvec)_mm256_unpacklo_epi8(low, high);
    pairs[1] = (uvec)_mm256_unpackhi_epi8(low, high);
}
#endif

static void widen_fp8(const char *codes, long depth, uint16_t *words)
{
    for (long k = 0; k < depth; k += 4)
        for (long column = 0; column < PANEL; column += LANES, codes += sizeof(uvec)) {
            uvec pairs[2];
            pairs_of_fp8(codes, pairs);
            uint16_t *to = words + k * PANEL + column * 2;
            memcpy(to, pairs, sizeof *pairs);
            memcpy(to + 2 * PANEL, pairs + 1, sizeof *pairs);
        }
}
#endif
/* sums += scales x part, with `fresh` sums = scales x part; both are [rows, PANEL]. */
INLINE void add_scaled(const float *part, const float *scales, long rows, int fresh, float *sums)
{
    for (long at = 0; at < rows * PANEL; at += LANES) {
        const vec before = fresh ? (vec){0} : load(FP32, sums, at);
        store(FP32, sums, at, fused(load(FP32, part, at), load(FP32, scales, at % PANEL), before));
    }
}

/* A block of a panel's depth, within a split, with the scales of its group. */
struct fp8_block {
    const char *codes;
    long depth;
    const float *scales;
};

INLINE struct fp8_block fp8_block_at(const struct linear *layer, const char *panel, long begin)
{
    const long group = group_of(layer), inside = least(group, whole_units(layer) - begin / group * group);
    const long split = whole_units(layer) / layer->splits, left = split - begin % split;
    const char *own = panel + begin / group * group_bytes(layer);
    return (struct fp8_block){
        own + codes_bytes(layer, begin % group), least(least(FP8_DEPTH_BLOCK, inside - begin % group), left),
        (const float *)(own + codes_bytes(layer, inside))};
}

#if defined HAS_WIDE_PRODUCT
#define FEW_FP8_ROWS 2
/* Converts four inputs of LANES outputs, without NaN, to fp32: shifts exponent and fraction, then corrects the bias. */
INLINE void numbers_of_fp8(uvec group, vec numbers[4])
{
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        numbers[i] = (vec)(((ivec)(group << (24 - 8 * i)) >> 4) & (int32_t)0x87f00000) * 0x1p120f;
}

/* As `add_wide_rows` for both halves, with codes dequantized in registers: few rows do not pay for a detour by memory.
   Returns 0, and leaves the sums as they are, where a code is NaN. */
INLINE int add_fp8_rows(
    const int rows, const float *x, const char *codes, long depth, int fresh, float *even, float *odd)
{
    float *const sums[2] = {even, odd};
    vec sum[2][FEW_FP8_ROWS][TILE_VECTORS];
    uvec carries = {0};
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++)
        load_sums(rows, fresh, sums[half], PANEL, sum[half]);
    for (long k = 0; k < depth; k += 4) {
#pragma GCC unroll 4
        for (int v = 0; v < TILE_VECTORS; v++, codes += sizeof(uvec)) {
            vec numbers[4];
            uvec group;
            memcpy(&group, codes, sizeof group);
            __builtin_prefetch(codes + FP8_AHEAD, 0, 2);
            carries |= (group & 0x7f7f7f7fu) + 0x01010101u; /* magnitude 127 is NaN */
            numbers_of_fp8(group, numbers);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++)
#pragma GCC unroll 2
                for (int row = 0; row < rows; row++)
                    add_fused(all(x[(k + i) * rows + row]), numbers[i], &sum[i % 2][row][v]);
        }
    }
    if (any((carries & 0x80808080u) != 0))
        return 0;
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++)
        store_sums(rows, sum[half], sums[half], PANEL);
    return 1;
}

static __attribute__((noinline)) int add_few_fp8(
    long rows, const float *x, const char *codes, long depth, int fresh, float *even, float *odd)
{
    if (rows == 1)
        return add_fp8_rows(1, x, codes, depth, fresh, even, odd);
    return add_fp8_rows(FEW_FP8_ROWS, x, codes, depth, fresh, even, odd);
}

/* sums [splits][rows, PANEL] = strips of x times a panel, without the outputs' scales. */
static void multiply_fp8(
    const struct linear *layer, const float *x, long rows, const char *panel, float *all_sums, float *odd)
{
    struct fp8_block block;
    uint16_t words[FP8_DEPTH_BLOCK * PANEL] __attribute__((aligned(64)));
    float part[2][TILE_ROWS * PANEL] __attribute__((aligned(64)));
    const long inputs = rounded_up(layer->inputs, 2), strips = strips_of(rows), split = inputs / layer->splits;
    const struct asked nothing = {panel, 0};
    for (long begin = 0; begin < inputs; begin += block.depth) {
        block = fp8_block_at(layer, panel, begin);
        const long depth = least(block.depth, inputs - begin);
        const float *few = x + begin * rows;
        const int grouped = layer->group != 0, fresh = begin % split == 0;
        float *sums = all_sums + begin / split * rows * PANEL;
        long left = strips;
        if (rows <= FEW_FP8_ROWS && depth % 4 == 0 &&
            add_few_fp8(
                rows, few, block.codes, depth, grouped || fresh, grouped ? part[0] : sums, grouped ? part[1] : odd)) {
            if (grouped) {
                join_halves(rows, part[0], part[1]);
                add_scaled(part[0], block.scales, rows, fresh, sums);
            }
            left = 0;
        }
        if (left)
            widen_fp8(block.codes, block.depth, words);
        for (long strip = 0; strip < left; strip++) {
            const long row = first_of(strip, rows), count = first_of(strip + 1, rows) - row;
            const float *own = x + row * inputs + begin * count;
            if (layer->group) {
                add_wide(count, own, (const char *)words, depth, 1, nothing, part[0], part[1]);
                join_halves(count, part[0], part[1]);
                add_scaled(part[0], block.scales, count, fresh, sums + row * PANEL);
            } else {
                add_wide(
                    count, own, (const char *)words, depth, fresh, nothing, sums + row * PANEL, odd + row * PANEL);
            }
        }
        if (!layer->group && (begin + depth) % split == 0)
            join_halves(rows, sums, odd);
    }
}
#else
/* sums [splits][rows, PANEL] = rows of x, `x_stride` elements apart, times a panel, without the outputs' scales. */
static void multiply_fp8(
    const struct linear *layer, const uint16_t *x, long x_stride, long rows, const char *panel, struct beside *beside,
    float *all_sums)
{
    struct fp8_block block;
    uint16_t words[FP8_DEPTH_BLOCK * PANEL] __attribute__((aligned(64)));
    uint16_t last[STRIP * FP8_DEPTH_BLOCK] __attribute__((aligned(64)));
    float part[STRIP * PANEL] __attribute__((aligned(64)));
    const long split = whole_units(layer) / layer->splits;
    for (long begin = 0; begin < layer->inputs; begin += block.depth) {
        block = fp8_block_at(layer, panel, begin);
        const int fresh = begin % split == 0;
        float *sums = all_sums + begin / split * rows * PANEL;
#if defined HAS_LOOK_UP
        if (rows <= FEW_LOOKED_UP)
            look_up_fp8(block.codes, block.depth, words);
        else
#endif
            widen_fp8(block.codes, block.depth, words);
        const long there = least(block.depth, layer->inputs - begin);
        for (long row = 0; row < rows; row += STRIP) {
            const long count = least(rows - row, STRIP);
            const uint16_t *own_x = x + row * x_stride + begin;
            float *own_sums = layer->group ? part : sums + row * PANEL;
            long stride = x_stride;
            if (there < block.depth) { /* memory behind a row is undefined */
                memset(last, 0, count * block.depth * sizeof *last);
                for (long r = 0; r < count; r++)
                    memcpy(last + r * block.depth, own_x + r * x_stride, there * sizeof *last);
                own_x = last;
                stride = block.depth;
            }
            add_strip(own_x, stride, count, words, block.depth, layer->group || fresh, beside, own_sums);
            if (layer->group)
                add_scaled(part, block.scales, count, fresh, sums + row * PANEL);
        }
    }
}
#endif
#endif

#endif
