/* The softmax of one tile of positions, and the merge of tiles.

   A row's state is the maximum of its scores, the total of the weights e^(score - maximum), and the weighted sums of values.
   A row that sees no position of a tile has total 0. */

#ifndef SOFTMAX_H
#define SOFTMAX_H

#include "attention_step.h"
#include "transpose.h"

/* Scores s of positions from … end - 1, multiples of LANES, become softcap x tanh(scale s / softcap). */
static void cap(float *scores, long from, long end, float scale, float softcap)
{
    for (long t = from; t < end; t += LANES) {
        const vec x = load(FP32, scores, t) * (scale / softcap);
        store(FP32, scores, t, hyperbolic_tangent(x) * softcap);
    }
}

/* The bits of the 32 positions from `at` on, a multiple of 32. */
INLINE uint32_t hidden_at(const struct hidden *hidden, long at) { return hidden->words[at / 64] >> at % 64; }

/* Up to which position nothing is hidden, or `end`. */
static long shown_before(const struct hidden *hidden, long end)
{
    for (long word = 0; hidden && word < TILE / 64; word++)
        if (hidden->words[word])
            return least(end, word * 64 + __builtin_ctzll(hidden->words[word]));
    return end;
}

/* Scores of positions from … end - 1, multiples of LANES, become weights, 0 for those outside low … high - 1, and for
   those that are hidden, if there are any. Of all others something is seen, if low is less than high. */
static void soften(
    float *scores, long from, long end, struct span seen_of_row, const struct hidden *hidden, float *maximum, float *total)
{
    static const ivec lane = LANE_NUMBERS;
    const long low = seen_of_row.first, high = seen_of_row.end, shown = shown_before(hidden, high);
    vec best = all(-INFINITY), sum = {0};
    *maximum = -INFINITY;
    *total = 0;
    if (high <= low) {
        memset(scores + from, 0, (end - from) * sizeof *scores);
        return;
    }
    const long whole = most(from, least(end, low <= from ? shown / LANES * LANES : from));
    for (long t = from; t < whole; t += LANES)
        best = larger(load(FP32, scores, t), best);
    for (long t = whole; t < end; t += LANES) {
        const ivec position = lane + (int32_t)t;
        ivec seen = (position >= (int32_t)low) & (position < (int32_t)high);
        if (hidden)
            seen &= (((ivec){0} + (int32_t)(hidden_at(hidden, t & -32) >> (t & 31))) >> lane & 1) == 0;
        const vec masked = chosen(seen, load(FP32, scores, t), all(-INFINITY));
        store(FP32, scores, t, masked);
        best = larger(masked, best);
    }
    *maximum = largest_of(best);
    for (long t = from; t < end; t += LANES) {
        const vec weight = exponential(load(FP32, scores, t) - *maximum);
        store(FP32, scores, t, weight);
        sum += weight;
    }
    *total = sum_of(sum);
}

/* Adds the states of `rows` rows of a tile to those of the tiles before it. */
static void merge(long rows, long dim, long width, struct state tile, struct state before)
{
    for (long first = 0; first < rows; first += LANES) {
        const long count = least(LANES, rows - first);
        const vec old = load_first(FP32, before.maximum, first, count), new = load_first(FP32, tile.maximum, first, count);
        const vec now = larger(new, old);
        float factor[LANES], tile_factor[LANES];
        store(FP32, factor, 0, exponential(old - now));
        store(FP32, tile_factor, 0, exponential(new - now));
        for (long i = 0, row = first; i < count; i++, row++) {
            if (tile.total[row] == 0)
                continue;
            const vec kept = all(factor[i]), added = all(tile_factor[i]);
            float *sums = before.sums + row * width;
            for (long d = 0; d < dim; d += LANES)
                store(FP32, sums, d, fused(load(FP32, tile.sums + row * width, d), added, load(FP32, sums, d) * kept));
            before.total[row] = before.total[row] * factor[i] + tile.total[row] * tile_factor[i];
            before.maximum[row] = now[i];
        }
    }
}

#if defined HAS_PAIRS
/* 2^x for x <= 0, to 1 in 13,000: a weight is rounded to bf16, which is 26 times as coarse. 0 or nearly so from -126 on;
   NaN stays NaN. (The minimax polynomial of the third degree for |r| <= 1/2.) */
INLINE vec power_of_two(vec x)
{
    const vec shift = all(12582912.0f); /* 1.5 x 2^23: adding it rounds to a whole number */
    const vec bounded = larger(all(-126.0f), x);
    const vec whole = bounded + shift, r = bounded - (whole - shift);
    vec p = fused(all(0.05517167f), r, all(0.24261112f));
    p = fused(p, r, all(0.69326099f));
    p = fused(p, r, all(0.99992807f));
    return p * (vec)(((uvec)whole << 23) + (127u << 23));
}

/* `v` in the lanes of positions that are seen, from `at` on, and `other` in the others. */
INLINE vec where_seen(long at, struct span seen, const struct hidden *hidden, vec v, vec other)
{
    const uint32_t below_high = (1u << most(0, least(seen.end - at, LANES))) - 1;
    const uint32_t below_low = (1u << most(0, least(seen.first - at, LANES))) - 1;
    const uint32_t lanes = below_high & ~below_low & ~(hidden ? hidden_at(hidden, at & -32) >> (at & 31) : 0);
#if defined __AVX512F__
    return _mm512_mask_mov_ps(other, lanes, v);
#else
    return chosen((((uvec){0} + lanes) >> (uvec)LANE_NUMBERS & 1) != 0, v, other);
#endif
}

INLINE vec weights_at(
    const int whole, const float *scores, long at, struct span seen, const struct hidden *hidden, vec scale, vec offset)
{
    const vec weights = power_of_two(fused(load(FP32, scores, at), scale, -offset));
    return whole ? weights : where_seen(at, seen, hidden, weights, (vec){0});
}

INLINE vec soften_both(
    const int whole, const float *scores, long at, struct span seen, const struct hidden *hidden, vec scale, vec offset,
    uint16_t *weights, vec sum)
{
    const uvec both = narrowed_both(
        weights_at(whole, scores, at, seen, hidden, scale, offset),
        weights_at(whole, scores, at + LANES, seen, hidden, scale, offset));
    memcpy(weights + at, &both, sizeof both);
#if defined __AVX512BF16__
    return add_pairs(sum, both, (uvec){0} + 0x3f803f80u); /* times 1 */
#else
    return sum + ((vec)(both << 16) + (vec)(both & 0xffff0000u)); /* GCC 12 makes a 1 of fp16 of ARM's 1 of bf16 */
#endif
}

/* As `soften`, for up to LANES rows of raw scores that `scale` belongs to; weights are bf16, from … end - 1 multiples of 32.
   The totals are those of the rounded weights, so that the weights of a tile are together 1. */
static void soften_to_bf16(
    const float *scores, long rows, long from, long end, const struct span *seen, const struct hidden *hidden, float scale,
    uint16_t *weights, float *maximum, float *total)
{
    vec square[LANES];
    float offset[LANES];
    long whole[LANES];
    for (long row = 0; row < rows; row++, scores += TILE) {
        const struct hidden *own = hidden ? hidden + row : 0;
        const long shown = shown_before(own, seen[row].end);
        whole[row] = most(from, least(end, seen[row].first <= from ? shown / 32 * 32 : from));
        vec best[2] = {all(-INFINITY), all(-INFINITY)};
        for (long t = from; t < whole[row]; t += 2 * LANES)
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++)
                best[half] = larger(load(FP32, scores, t + half * LANES), best[half]);
        for (long t = whole[row]; t < end; t += LANES)
            best[0] = larger(where_seen(t, seen[row], own, load(FP32, scores, t), all(-INFINITY)), best[0]);
        square[row] = larger(best[0], best[1]);
    }
    for (long row = rows; row < LANES; row++)
        square[row] = (vec){0};
    const vec largest = largest_of_each(square), scale_2 = all(scale * 1.44269504f);
    store(FP32, offset, 0, largest * scale_2);
    store_first(FP32, maximum, 0, largest * scale, rows);
    scores -= rows * TILE;
    for (long row = 0; row < rows; row++, scores += TILE, weights += TILE) {
        const struct hidden *own = hidden ? hidden + row : 0;
        vec sum = {0};
        for (long t = from; t < whole[row]; t += 2 * LANES)
            sum = soften_both(1, scores, t, seen[row], own, scale_2, all(offset[row]), weights, sum);
        for (long t = whole[row]; t < end; t += 2 * LANES)
            sum = soften_both(0, scores, t, seen[row], own, scale_2, all(offset[row]), weights, sum);
        square[row] = sum;
    }
    store_first(FP32, total, 0, sums_of(square), rows);
}
#endif

#endif
