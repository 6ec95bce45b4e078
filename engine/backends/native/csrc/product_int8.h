/* Rows of x in int8 times a unit of quantized weights: whole numbers are multiplied and summed exactly, then scaled.

   sums[row][output] += scale[output] xscale[row] (v x - zero sum(x)) + offset[output] xscale[row] sum(x)

   for a unit of inputs that share scales. Codes are [depth / 4][PANEL][4], as the instructions take them: VNNI's sums of
   four products of unsigned and signed bytes, AMX's tiles of them, or pairs of products in 16 bits elsewhere. The whole
   numbers are the same on all of them. */

#ifndef PRODUCT_INT8_H
#define PRODUCT_INT8_H

#include "amx.h"
#include "quantized_rows.h"

#if defined HAS_INT8_PRODUCT
#if !defined VNNI_ENCODING
#define VNNI_ENCODING "vex" /* of AVX-VNNI; with "evex" AVX-512's form runs the same source in tests */
#endif

/* What multiplies a unit. Scales, and offsets behind them, are [PANEL]: fp32, or in a panel that is read in place fp16. */
struct unit {
    const uint8_t *codes;
    const char *scales, *offsets;
};

/* What the units of a layer have in common: a function is made for each. */
struct unit_kind {
    int depth, zero;
    int has_sign;    /* of codes: they are int8; otherwise so small that 16 bits hold a unit's sums */
    int has_scales, has_offsets; /* no offsets are 0, no scales 1 */
    int in_place;    /* codes and scales are read as they lie in the panel, by few rows … */
    int has_halves;  /* … and codes have 4 bits … */
    const uint8_t *table; /* … which a table [16] has the numbers of; or null */
};

/* Rows of x, in a unit. */
struct unit_rows {
    const char *codes;
    long stride, plane; /* bytes from a row, and from a plane, to the next */
    const struct factor *factors;
};

INLINE const struct factor *factor_of(const struct unit_rows *x, long row)
{
    return (const struct factor *)((const char *)x->factors + row * x->stride);
}

#if LANES == 16
#define BYTES __m512i
#define INSTRUCTION(NAME) _mm512_##NAME
#elif defined __aarch64__
#define BYTES uvec
#define INSTRUCTION(NAME) neon_##NAME
INLINE BYTES neon_set1_epi8(uint8_t x) { return (BYTES)vdupq_n_u8(x); }
INLINE BYTES neon_set1_epi32(int32_t x) { return (BYTES)vdupq_n_s32(x); }
INLINE BYTES neon_shuffle_epi8(BYTES of, BYTES at) { return (BYTES)vqtbl1q_u8((uint8x16_t)of, (uint8x16_t)at); }
#else
#define BYTES __m256i
#define INSTRUCTION(NAME) _mm256_##NAME
#endif

INLINE BYTES four_of(const char *x)
{
    int32_t word;
    memcpy(&word, x, sizeof word);
    return INSTRUCTION(set1_epi32)(word);
}

#if defined __aarch64__ && !defined __ARM_FEATURE_MATMUL_INT8
#define TAKEN_FROM_CODES 128 /* makes them signed for the product */
#else
#define TAKEN_FROM_CODES 0
#endif

/* Adds products of codes without sign to `sum`: in 32 bits, or where there is no VNNI, pairs of them in 16 bits. */
INLINE BYTES add_products(BYTES sum, BYTES codes, BYTES x)
{
#if defined HAS_VNNI
    /* not the compiler's intrinsic: GCC 12 keeps its sums in memory */
#if LANES == 16
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(x));
#elif defined __ARM_FEATURE_MATMUL_INT8
    sum = (BYTES)vusdotq_s32((int32x4_t)sum, (uint8x16_t)codes, (int8x16_t)x);
#elif defined __aarch64__
    const int8x16_t a = (int8x16_t)(codes ^ 0x80808080u), b = (int8x16_t)x;
#if defined __ARM_FEATURE_DOTPROD
    sum = (BYTES)vdotq_s32((int32x4_t)sum, a, b);
#else
    const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b)), high = vmull_high_s8(a, b);
    sum += (BYTES)vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
#endif
#else
    __asm__("%{" VNNI_ENCODING "%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(codes), "x"(x));
#endif
    return sum;
#else
    return INSTRUCTION(add_epi16)(sum, INSTRUCTION(maddubs_epi16)(codes, x));
#endif
}

#if !defined HAS_VNNI
/* The same in 32 bits for codes with a sign, less the magnitudes of negative x: there |x| (-1 ^ code) = x code - |x|. */
INLINE BYTES add_signed_products(BYTES sum, BYTES codes, BYTES size, BYTES sign)
{
    const BYTES pairs = INSTRUCTION(maddubs_epi16)(size, (BYTES)((uvec)sign ^ (uvec)codes));
    return INSTRUCTION(add_epi32)(sum, INSTRUCTION(madd_epi16)(pairs, INSTRUCTION(set1_epi16)(1)));
}
#endif

INLINE vec scale_of(const char *scales, const int in_place, long column)
{
    return in_place ? load_half(scales, column) : load(FP32, scales, column);
}

INLINE vec add_whole(
    const struct unit_kind kind, const struct unit *unit, const struct factor *factor, long column, BYTES whole,
    vec sum)
{
    vec number = __builtin_convertvector((ivec)whole, vec);
    if (kind.has_scales)
        number *= scale_of(unit->scales, kind.in_place, column);
    sum = fused(number, all(factor->scale), sum);
    if (kind.has_offsets)
        sum = fused(scale_of(unit->offsets, kind.in_place, column), all(factor->scale * factor->sum), sum);
    return sum;
}

/* Adds the products of four inputs, whose codes are `codes`, to `sum`. */
INLINE void add_four(
    const int rows, const struct unit_kind kind, const BYTES *codes, struct unit_rows x, long k,
    BYTES sum[INT8_ROWS][TILE_VECTORS])
{
#pragma GCC unroll 6
    for (int row = 0; row < rows; row++) {
        const char *own = x.codes + row * x.stride + k;
#pragma GCC unroll 4
        for (int v = 0; v < TILE_VECTORS; v++)
#if defined HAS_VNNI
            sum[row][v] = add_products(sum[row][v], codes[v], four_of(own));
#else
            sum[row][v] = kind.has_sign ? add_signed_products(
                                              sum[row][v], codes[v], four_of(own + x.plane), four_of(own + 2 * x.plane))
                                        : add_products(sum[row][v], codes[v], four_of(own));
#endif
    }
}

/* Adds up to INT8_ROWS rows times several contiguous units, one after the other; sums stay in registers. */
INLINE void add_unit_rows(
    const int rows, const struct unit_kind kind, const struct unit *units, long count, struct unit_rows x, float *sums)
{
    const BYTES half = INSTRUCTION(set1_epi8)(15);
    BYTES values = {0};
    vec found[INT8_ROWS][TILE_VECTORS];
    if (kind.has_halves && kind.table)
        for (unsigned long i = 0; i < sizeof values; i += 16)
            memcpy((char *)&values + i, kind.table, 16);
    load_sums(rows, 0, sums, PANEL, found);
    for (const struct unit *unit = units; unit < units + count; unit++, x.codes += kind.depth, x.factors++) {
        BYTES sum[INT8_ROWS][TILE_VECTORS];
#pragma GCC unroll 6
        for (int row = 0; row < rows; row++) {
#if defined HAS_VNNI
            const BYTES begin = INSTRUCTION(set1_epi32)((TAKEN_FROM_CODES - kind.zero) * factor_of(&x, row)->sum);
#else
            const BYTES begin = INSTRUCTION(set1_epi32)(0);
#endif
#pragma GCC unroll 4
            for (int v = 0; v < TILE_VECTORS; v++)
                sum[row][v] = begin;
        }
        const uint8_t *from = unit->codes;
        if (kind.has_halves) {
#pragma GCC unroll 2
            for (long k = 0; k < kind.depth; k += 8) {
                BYTES words[TILE_VECTORS], codes[TILE_VECTORS];
#pragma GCC unroll 4
                for (int v = 0; v < TILE_VECTORS; v++, from += sizeof(BYTES)) {
                    memcpy(&words[v], from, sizeof(BYTES));
                    codes[v] = (BYTES)((uvec)words[v] & (uvec)half);
                    if (kind.table)
                        codes[v] = INSTRUCTION(shuffle_epi8)(values, codes[v]);
                }
                add_four(rows, kind, codes, x, k, sum);
#pragma GCC unroll 4
                for (int v = 0; v < TILE_VECTORS; v++) {
                    codes[v] = (BYTES)((uvec)words[v] >> 4 & (uvec)half);
                    if (kind.table)
                        codes[v] = INSTRUCTION(shuffle_epi8)(values, codes[v]);
                }
                add_four(rows, kind, codes, x, k + 4, sum);
            }
        } else {
#pragma GCC unroll 4
            for (long k = 0; k < kind.depth; k += 4) {
                BYTES codes[TILE_VECTORS];
#pragma GCC unroll 4
                for (int v = 0; v < TILE_VECTORS; v++, from += sizeof(BYTES))
                    memcpy(&codes[v], from, sizeof(BYTES));
                add_four(rows, kind, codes, x, k, sum);
            }
        }
#pragma GCC unroll 6
        for (int row = 0; row < rows; row++) {
            const struct factor *factor = factor_of(&x, row);
#pragma GCC unroll 4
            for (int v = 0; v < TILE_VECTORS; v++) {
                BYTES whole = sum[row][v];
#if !defined HAS_VNNI
                if (!kind.has_sign)
                    whole = INSTRUCTION(madd_epi16)(whole, INSTRUCTION(set1_epi16)(1));
                const int32_t less = kind.zero * factor->sum - (kind.has_sign ? factor->minus : 0);
                whole = INSTRUCTION(sub_epi32)(whole, INSTRUCTION(set1_epi32)(less));
#endif
                found[row][v] = add_whole(kind, unit, factor, v * LANES, whole, found[row][v]);
            }
        }
    }
    store_sums(rows, found, sums, PANEL);
}

#if defined HAS_AMX && defined __AMX_INT8__
#define INT8_STRIP 16 /* rows of a tile; fewer go through VNNI, which makes the same whole numbers */

static void shape_int8_tiles(long depth)
{
    struct tile_shapes shapes = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        shapes.row_bytes[tile] = tile == 4 ? depth : 64;
        shapes.rows[tile] = tile > 4 ? depth / 4 : INT8_STRIP;
    }
    shape_tiles(&shapes);
}

static void add_unit_strip(const struct unit_kind *kind, const struct unit *unit, struct unit_rows x, float *sums)
{
    int32_t whole[INT8_STRIP * PANEL] __attribute__((aligned(64)));
    TILE_ZERO(0); TILE_ZERO(1); TILE_ZERO(2); TILE_ZERO(3);
    TILE_LOAD(4, x.codes, x.stride);
    TILE_LOAD(5, unit->codes, PANEL * 4);
    TILE_ADD_BYTES(0, 4, 5);
    TILE_LOAD(6, unit->codes + 64, PANEL * 4);
    TILE_ADD_BYTES(1, 4, 6);
    TILE_LOAD(7, unit->codes + 128, PANEL * 4);
    TILE_ADD_BYTES(2, 4, 7);
    TILE_LOAD(5, unit->codes + 192, PANEL * 4);
    TILE_ADD_BYTES(3, 4, 5);
    TILE_STORE(0, whole, PANEL * 4); TILE_STORE(1, whole + 16, PANEL * 4);
    TILE_STORE(2, whole + 32, PANEL * 4); TILE_STORE(3, whole + 48, PANEL * 4);
    for (int row = 0; row < INT8_STRIP; row++) {
        const struct factor *factor = factor_of(&x, row);
        const BYTES begin = _mm512_set1_epi32(kind->zero * factor->sum);
        float *own = sums + row * PANEL;
#pragma GCC unroll 4
        for (int v = 0; v < TILE_VECTORS; v++) {
            const BYTES sum = _mm512_sub_epi32(_mm512_load_si512(whole + row * PANEL + v * LANES), begin);
            store(FP32, own, v * LANES, add_whole(*kind, unit, factor, v * LANES, sum, load(FP32, own, v * LANES)));
        }
    }
}
#endif

/* `kind` with what a function is made for as constants. */
INLINE struct unit_kind fixed(
    const struct unit_kind *kind, const int has_sign, const int has_scales, const int has_offsets, const int in_place,
    const int has_halves, const int has_table)
{
    return (struct unit_kind){
        kind->depth, kind->zero, has_sign, has_scales, has_offsets, in_place, has_halves, has_table ? kind->table : 0};
}

#define ADD_UNITS(NAME, ROWS, ...) \
    static __attribute__((noinline)) void NAME##ROWS( \
        const struct unit_kind *kind, const struct unit *units, long count, struct unit_rows x, float *sums) \
    { \
        add_unit_rows(ROWS, fixed(kind, __VA_ARGS__), units, count, x, sums); \
    }
#define ADD_ROWS(NAME, ...) \
    ADD_UNITS(NAME, 1, __VA_ARGS__) ADD_UNITS(NAME, 2, __VA_ARGS__) ADD_UNITS(NAME, 3, __VA_ARGS__)
#define EACH(NAME) {0, NAME##1, NAME##2, NAME##3}

/*       sign, scales, offsets, in place, halves, table */
ADD_ROWS(add_plain_, 0, 0, 0, 0, 0, 0)
ADD_ROWS(add_scaled_, 0, 1, 0, 0, 0, 0)
ADD_ROWS(add_offset_, 0, 1, 1, 0, 0, 0)
ADD_ROWS(add_plain_halves_, 0, 0, 0, 1, 1, 0)
ADD_ROWS(add_scaled_halves_, 0, 1, 0, 1, 1, 0)
ADD_ROWS(add_offset_halves_, 0, 1, 1, 1, 1, 0)
ADD_ROWS(add_listed_halves_, 0, 1, 0, 1, 1, 1)
#if defined HAS_VNNI
ADD_ROWS(add_plain_bytes_, 0, 0, 0, 1, 0, 0)
ADD_ROWS(add_scaled_bytes_, 0, 1, 0, 1, 0, 0)
ADD_ROWS(add_offset_bytes_, 0, 1, 1, 1, 0, 0)
#else
ADD_ROWS(add_signed_, 1, 0, 0, 0, 0, 0)
ADD_ROWS(add_scaled_signed_, 1, 1, 0, 0, 0, 0)
ADD_ROWS(add_offset_signed_, 1, 1, 1, 0, 0, 0)
ADD_ROWS(add_plain_bytes_, 1, 0, 0, 1, 0, 0)
ADD_ROWS(add_scaled_bytes_, 1, 1, 0, 1, 0, 0)
ADD_ROWS(add_offset_bytes_, 1, 1, 1, 1, 0, 0)
#endif

typedef void (*units_adder)(
    const struct unit_kind *kind, const struct unit *units, long count, struct unit_rows x, float *sums);

/* The functions for 1 … INT8_ROWS rows, or null: there are none that read such units in place. */
INLINE const units_adder *adders_of(const struct unit_kind *kind)
{
    static const units_adder beside[3][INT8_ROWS + 1] = {EACH(add_plain_), EACH(add_scaled_), EACH(add_offset_)};
    static const units_adder halves[3][INT8_ROWS + 1] = {
        EACH(add_plain_halves_), EACH(add_scaled_halves_), EACH(add_offset_halves_)};
    static const units_adder listed[INT8_ROWS + 1] = EACH(add_listed_halves_);
    static const units_adder bytes[3][INT8_ROWS + 1] = {
        EACH(add_plain_bytes_), EACH(add_scaled_bytes_), EACH(add_offset_bytes_)};
    const int which = kind->has_offsets ? 2 : kind->has_scales;
    if (kind->in_place && kind->table)
        return which == 1 ? listed : 0;
    if (kind->in_place)
        return kind->has_halves ? halves[which] : bytes[which];
#if !defined HAS_VNNI
    static const units_adder signs[3][INT8_ROWS + 1] = {
        EACH(add_signed_), EACH(add_scaled_signed_), EACH(add_offset_signed_)};
    if (kind->has_sign)
        return signs[which];
#endif
    return beside[which];
}

#endif
#endif
