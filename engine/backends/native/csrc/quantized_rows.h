/* Rows of x in int8: units of inputs, each with a scale, that products of bytes take.

   x[i] becomes scale q[i] with q in -127 … 127, where scale is the unit's largest |x| / 127. A unit that is not finite
   gets a scale that is not; one below TINIEST becomes 0. Units are quantized by themselves, so a row's bits depend on
   that row only. */

#ifndef QUANTIZED_ROWS_H
#define QUANTIZED_ROWS_H

#include "quantized_panel.h"

#if defined HAS_INT8_PRODUCT
#define LARGEST_CODE 127
#define TINIEST 1e-30f
#define ROUNDING 12582912.0f /* 1.5 x 2^23: what is added to it ends in a whole number's bits */

/* Of one unit: what its codes are times, and their sum. */
struct factor {
    float scale;
    int32_t sum, minus; /* of the codes, and of the magnitudes of the negative codes */
};

/* A row is its planes, then the factors of its units. */
INLINE long quantized_row_bytes(const struct linear *layer)
{
    const long depth = whole_units(layer);
    return rounded_up(planes_of(layer) * depth + depth / unit_of(layer) * sizeof(struct factor), 64);
}

/* The largest, or the sum, of all lanes, in any order: of numbers for which that does not matter. */
INLINE float reduced(vec v, const int sum)
{
#if LANES == 16
    return sum ? _mm512_reduce_add_ps(v) : _mm512_reduce_max_ps(v);
#elif defined __aarch64__
    return sum ? vaddvq_f32(v) : vmaxvq_f32(v);
#else
    const ivec halves = {4, 5, 6, 7}, pairs = {2, 3, 0, 1}, neighbours = {1, 0};
    vec other = __builtin_shuffle(v, halves);
    v = sum ? v + other : larger(v, other);
    other = __builtin_shuffle(v, pairs);
    v = sum ? v + other : larger(v, other);
    other = __builtin_shuffle(v, neighbours);
    return sum ? v[0] + other[0] : larger(v, other)[0];
#endif
}

/* `numbers` are a unit's, with zeros behind its end. */
INLINE struct factor quantize_unit(const vec *numbers, const int vectors, int8_t *codes)
{
    vec size = {0}, strange = {0}, total = {0};
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) {
        size = larger((vec)((uvec)numbers[v] & 0x7fffffffu), size);
        strange += numbers[v] - numbers[v]; /* 0, or NaN */
    }
    const float found = reduced(size, 0), inverse = found > TINIEST ? LARGEST_CODE / found : 0;
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) {
        const vec code = fused(numbers[v], all(inverse), all(ROUNDING));
        total += code - ROUNDING;
        const ivec whole = (ivec)code;
#if LANES == 16
        _mm_storeu_si128((__m128i *)(codes + v * LANES), _mm512_cvtepi32_epi8((__m512i)whole));
#else
        for (int lane = 0; lane < LANES; lane++)
            codes[v * LANES + lane] = (int8_t)whole[lane];
#endif
    }
    const float poison = any(strange != strange) ? NAN : 0;
    return (struct factor){found / LARGEST_CODE + poison, poison == 0 ? (int32_t)reduced(total, 1) : 0, 0};
}

/* Quantizes units of a row of bf16, from input `begin` to `end`. */
INLINE void quantize_units(
    const struct linear *layer, const uint16_t *x, long begin, long end, const int unit, char *row)
{
    struct factor *factors = (struct factor *)(row + planes_of(layer) * whole_units(layer));
    for (long first = begin; first < end; first += unit) {
        const long count = least(unit, layer->inputs - first);
        vec numbers[UNIT / LANES];
        uint16_t gathered[UNIT];
        const uint16_t *from = x + first;
        if (layer->order) {
            for (long i = 0; i < count; i++)
                gathered[i] = x[layer->order[first + i]];
            from = gathered;
        }
#pragma GCC unroll 4
        for (int v = 0; v < unit / LANES; v++)
            numbers[v] = count == unit ? load(BF16, from, v * LANES)
                                       : load_first(BF16, from, v * LANES, most(0, count - v * LANES));
        int8_t *codes = (int8_t *)row + first, *sizes = codes + whole_units(layer), *signs = sizes + whole_units(layer);
        struct factor factor = quantize_unit(numbers, unit / LANES, codes);
        for (int i = 0; planes_of(layer) == 3 && i < unit; i++) {
            signs[i] = codes[i] >> 7;
            sizes[i] = (codes[i] ^ signs[i]) - signs[i];
            factor.minus -= codes[i] & signs[i];
        }
        factors[first / unit] = factor;
    }
}

/* Quantizes inputs of a row from `begin` to `end`, in whole units. */
static void quantize_row(const struct linear *layer, const char *x, long begin, long end, char *row)
{
    if (unit_of(layer) == UNIT)
        quantize_units(layer, (const uint16_t *)x, begin, end, UNIT, row);
    else
        quantize_units(layer, (const uint16_t *)x, begin, end, UNIT / 2, row);
}

#endif
#endif
