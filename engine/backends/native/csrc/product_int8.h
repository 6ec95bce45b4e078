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

/* What multiplies a unit. `scales` and `offsets` are [PANEL]; no offsets are 0. */
struct unit {
    const uint8_t *codes;
    const float *scales, *offsets;
    long depth, zero;
    int has_sign; /* of codes: they are int8; otherwise so small that 16 bits hold a unit's sums */
};

/* Rows of x, in a unit. */
struct unit_rows {
    const char *codes;
    long stride; /* bytes */
    const struct factor *factors;
};

INLINE const struct factor *factor_of(const struct unit_rows *x, long row)
{
    return (const struct factor *)((const char *)x->factors + row * x->stride);
}

#if LANES == 16
#define BYTES __m512i
#define INSTRUCTION(NAME) _mm512_##NAME
INLINE BYTES with_sign(BYTES x, BYTES of) { return _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(of), _mm512_setzero_si512(), x); }
#else
#define BYTES __m256i
#define INSTRUCTION(NAME) _mm256_##NAME
INLINE BYTES with_sign(BYTES x, BYTES of) { return _mm256_sign_epi8(x, of); }
#endif

INLINE BYTES four_of(const char *x)
{
    int32_t word;
    memcpy(&word, x, sizeof word);
    return INSTRUCTION(set1_epi32)(word);
}

/* Adds products to `sum`: in 32 bits, or where codes have no sign and there is no VNNI, pairs of them in 16 bits. */
INLINE BYTES add_products(BYTES sum, BYTES codes, BYTES x, const int has_sign)
{
#if defined HAS_VNNI
    (void)has_sign; /* not the compiler's intrinsic: GCC 12 keeps its sums in memory */
#if LANES == 16
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(x));
#else
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(codes), "x"(x));
#endif
    return sum;
#else
    if (!has_sign)
        return INSTRUCTION(add_epi16)(sum, INSTRUCTION(maddubs_epi16)(codes, x));
    const BYTES pairs = INSTRUCTION(maddubs_epi16)(INSTRUCTION(abs_epi8)(codes), with_sign(x, codes));
    return INSTRUCTION(add_epi32)(sum, INSTRUCTION(madd_epi16)(pairs, INSTRUCTION(set1_epi16)(1)));
#endif
}

INLINE void add_whole(
    const int has_offsets, const struct unit *unit, const struct factor *factor, long column, BYTES whole, float *sums)
{
    const vec number = __builtin_convertvector((ivec)whole, vec);
    vec sum = fused(number * load(FP32, unit->scales, column), all(factor->scale), load(FP32, sums, column));
    if (has_offsets)
        sum = fused(load(FP32, unit->offsets, column), all(factor->scale * factor->sum), sum);
    store(FP32, sums, column, sum);
}

INLINE void add_unit_rows(
    const int rows, const int has_sign, const int has_offsets, const struct unit *unit, struct unit_rows x, float *sums)
{
    __asm__ volatile("" : : : "memory"); /* or GCC keeps sums of the unit before in registers, and others nowhere */
    BYTES sum[INT8_ROWS][TILE_VECTORS];
#pragma GCC unroll 6
    for (int row = 0; row < rows; row++) {
#if defined HAS_VNNI
        const BYTES begin = INSTRUCTION(set1_epi32)(-(int32_t)unit->zero * factor_of(&x, row)->sum);
#else
        const BYTES begin = INSTRUCTION(set1_epi32)(0);
#endif
#pragma GCC unroll 4
        for (int v = 0; v < TILE_VECTORS; v++)
            sum[row][v] = begin;
    }
    for (long k = 0; k < unit->depth; k += 4) {
        BYTES codes[TILE_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < TILE_VECTORS; v++)
            memcpy(&codes[v], unit->codes + k * PANEL + v * sizeof(BYTES), sizeof(BYTES));
#pragma GCC unroll 6
        for (int row = 0; row < rows; row++) {
            const BYTES four = four_of(x.codes + row * x.stride + k);
#pragma GCC unroll 4
            for (int v = 0; v < TILE_VECTORS; v++)
                sum[row][v] = add_products(sum[row][v], codes[v], four, has_sign);
        }
    }
#pragma GCC unroll 6
    for (int row = 0; row < rows; row++) {
        const struct factor *factor = factor_of(&x, row);
#pragma GCC unroll 4
        for (int v = 0; v < TILE_VECTORS; v++) {
            BYTES whole = sum[row][v];
#if !defined HAS_VNNI
            if (!has_sign)
                whole = INSTRUCTION(madd_epi16)(whole, INSTRUCTION(set1_epi16)(1));
            whole = INSTRUCTION(sub_epi32)(whole, INSTRUCTION(set1_epi32)((int32_t)unit->zero * factor->sum));
#endif
            add_whole(has_offsets, unit, factor, v * LANES, whole, sums + row * PANEL);
        }
    }
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

static void add_unit_strip(const struct unit *unit, struct unit_rows x, float *sums)
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
        const BYTES begin = _mm512_set1_epi32((int32_t)unit->zero * factor->sum);
#pragma GCC unroll 4
        for (int v = 0; v < TILE_VECTORS; v++)
            add_whole(
                unit->offsets != 0, unit, factor, v * LANES, _mm512_sub_epi32(_mm512_load_si512(whole + row * PANEL + v * LANES), begin),
                sums + row * PANEL);
    }
}
#endif

/* Up to INT8_ROWS rows, in several units one after the other: those of x lie beside each other. A function is made for
   each number of rows, and each kind of codes. */
#define ADD_UNITS(NAME, ROWS, HAS_SIGN, HAS_OFFSETS) \
    static __attribute__((noinline)) void NAME##ROWS( \
        const struct unit *units, long count, struct unit_rows x, float *sums) \
    { \
        for (const struct unit *unit = units; unit < units + count; x.codes += unit++->depth, x.factors++) \
            add_unit_rows(ROWS, HAS_SIGN, HAS_OFFSETS, unit, x, sums); \
    }
#define ADD_ROWS(NAME, HAS_SIGN, HAS_OFFSETS) \
    ADD_UNITS(NAME, 1, HAS_SIGN, HAS_OFFSETS) \
    ADD_UNITS(NAME, 2, HAS_SIGN, HAS_OFFSETS) \
    ADD_UNITS(NAME, 3, HAS_SIGN, HAS_OFFSETS) \
    ADD_UNITS(NAME, 4, HAS_SIGN, HAS_OFFSETS) \
    LAST_ROWS(NAME, HAS_SIGN, HAS_OFFSETS)
#if INT8_ROWS == 6
#define LAST_ROWS(NAME, HAS_SIGN, HAS_OFFSETS) \
    ADD_UNITS(NAME, 5, HAS_SIGN, HAS_OFFSETS) ADD_UNITS(NAME, 6, HAS_SIGN, HAS_OFFSETS)
#define EACH(NAME) {0, NAME##1, NAME##2, NAME##3, NAME##4, NAME##5, NAME##6}
#else
#define LAST_ROWS(NAME, HAS_SIGN, HAS_OFFSETS)
#define EACH(NAME) {0, NAME##1, NAME##2, NAME##3, NAME##4}
#endif
ADD_ROWS(add_units_, 0, 0)
ADD_ROWS(add_offset_units_, 0, 1)
#if !defined HAS_VNNI
ADD_ROWS(add_signed_units_, 1, 0)
ADD_ROWS(add_signed_offset_units_, 1, 1)
#endif

typedef void (*units_adder)(const struct unit *units, long count, struct unit_rows x, float *sums);

INLINE units_adder adder_of(const struct unit *unit, long rows)
{
    static const units_adder plain[] = EACH(add_units_), offset[] = EACH(add_offset_units_);
#if !defined HAS_VNNI
    static const units_adder signs[] = EACH(add_signed_units_), both[] = EACH(add_signed_offset_units_);
    if (unit->has_sign)
        return unit->offsets ? both[rows] : signs[rows];
#endif
    return unit->offsets ? offset[rows] : plain[rows];
}

#endif
#endif
