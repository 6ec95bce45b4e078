/* A block of rows times a panel of weights in any format, finished into y.

   A panel of PANEL outputs interleaves inputs to words of 32 bits: fp32 [input][PANEL], bf16 [input / 2][PANEL][2], int8
   [input / 4][PANEL][4]. Missing outputs and inputs are zero. bf16 panels are multiplied in place, or widened to fp32 in
   registers where the processor has no bf16 products. Other formats are converted to bf16 or fp32 block by block, once for
   a block of rows. */

#ifndef PANEL_PRODUCT_H
#define PANEL_PRODUCT_H

#include "fp8_product.h"
#include "product_bf16.h"
#include "quantized_product.h"
#include "wide_product.h"

#if !defined DEPTH_UNIT
#define DEPTH_UNIT 4 /* of packed bf16 and int8: a group of int8 weights */
#endif
#define LEAST_ROWS 96 /* of x that stay in the L2 cache while panels pass … */
#if defined HAS_AMX
#define ROW_BLOCK 512 /* … and more, up to X_BYTES: with AMX, reading weights again is slow */
#else
#define ROW_BLOCK LEAST_ROWS
#endif
#define X_BYTES (768 << 10)
#define WIDE_BYTES (1 << 20)  /* the same for widened x, at least TILE_ROWS rows */
#define WIDE_DEPTH_BLOCK 256  /* of bf16 weights that are widened in registers: as DEPTH_BLOCK */
#define WIDE_AHEAD 8192       /* bytes: as AHEAD */
#define DEPTH_BLOCK 128       /* of fp32 weights: stays in the L1 cache while rows pass */
#define BF16_DEPTH_BLOCK 2048 /* of bf16 weights: stays in the L2 cache */
#define AHEAD 16384           /* prefetch distance of fp32 panels, in bytes */

/* Buffers of a thread. */
struct scratch {
    float sums[MOST_SPLITS * ROW_BLOCK * PANEL]; /* of each split [rows, PANEL] */
    float wide[DEPTH_BLOCK * PANEL], wide_x[TILE_ROWS * DEPTH_BLOCK]; /* weights and rows as fp32 */
#if defined HAS_BF16_PRODUCT
    uint16_t rest[STRIP * DEPTH_UNIT]; /* ends of rows */
    struct beside beside;
    long side; /* of the two strips of sums that take turns */
#endif
#if defined HAS_WIDE_PRODUCT
    float odd[LEAST_ROWS * PANEL]; /* sums, see wide_product.h */
    float *strips;     /* rows as `take_wide` makes them … */
    const char *taken; /* … which ones: from here on … */
    long taken_rows, taken_inputs; /* … and so many */
#endif
    const char *after; /* what this thread reads when it is done with its panel, or null */
    struct finish finish;
} __attribute__((aligned(64)));

INLINE long weight_bytes(long weights) { return weights == INT8 ? 1 : weights == BF16 ? 2 : 4; }
INLINE long packed_depth(const struct linear *layer)
{
    return layer->weights == FP32 ? layer->inputs : rounded_up(layer->inputs, DEPTH_UNIT);
}
INLINE long panel_bytes(const struct linear *layer)
{
    if (is_quantized(layer))
        return quantized_panel_bytes(layer);
    return packed_depth(layer) * PANEL * weight_bytes(layer->weights);
}

INLINE void store_whole(float *to, long at, ivec whole) { store(FP32, to, at, __builtin_convertvector(whole, vec)); }

/* `depth` rows of a panel as fp32 [depth][PANEL]. */
static void widen_weights(long weights, const char *panel, long depth, float *wide)
{
    for (long k = 0; k < depth; k += 4 / weight_bytes(weights))
        for (long column = 0; column < PANEL; column += LANES, panel += sizeof(uvec)) {
            float *to = wide + k * PANEL + column;
            uvec word;
            memcpy(&word, panel, sizeof word);
            if (weights == BF16) {
                store(FP32, to, 0, (vec)(word << 16));
                store(FP32, to, PANEL, (vec)(word & 0xffff0000u));
            } else {
                store_whole(to, 0, (ivec)(word << 24) >> 24);
                store_whole(to, PANEL, (ivec)(word << 16) >> 24);
                store_whole(to, 2 * PANEL, (ivec)(word << 8) >> 24);
                store_whole(to, 3 * PANEL, (ivec)word >> 24);
            }
        }
}

/* Rows first … end - 1 of x times a panel; `output` is the panel's first. */
struct part {
    const struct linear *layer;
    const char *x; /* row 0 */
    long x_stride, first, end, output;
    const char *panel;
    char *y;
    long y_stride;
};

/* Finishes all rows of a part from the thread's sums. */
INLINE void finish_part(const struct part *part, struct scratch *own)
{
    own->finish = (struct finish){
        part->layer, own->sums, (part->end - part->first) * PANEL, part->output, part->first, part->end, part->y, 1,
        part->y_stride};
    finish_all(&own->finish);
}

static void multiply_in_fp32(const struct part *part, struct scratch *own)
{
    const struct linear *layer = part->layer;
    const long input_bytes = PANEL * weight_bytes(layer->weights), rows = part->end - part->first;
    const long split = split_depth(layer);
    finish_all(&own->finish); /* of another layer's sums, which these replace */
    memset(own->sums, 0, layer->splits * rows * PANEL * sizeof *own->sums);
    for (long begin = 0, depth; begin < layer->inputs; begin += depth) {
        depth = least(split - begin % split, DEPTH_BLOCK);
        float *sums = own->sums + begin / split * rows * PANEL;
        const char *block = part->panel + begin * input_bytes;
        const float *weights = layer->weights == FP32 ? (const float *)block : own->wide;
        if (is_quantized(layer))
            widen_quantized(layer, part->panel, begin, depth, own->wide);
        else if (layer->weights != FP32)
            widen_weights(layer->weights, block, depth, own->wide);
        for (long row = 0; row < rows; row += TILE_ROWS) {
            const long count = least(rows - row, TILE_ROWS), at = (part->first + row) * part->x_stride + begin;
            const float *x = (const float *)part->x + at;
            long x_stride = part->x_stride;
            if (layer->format == BF16) {
                for (long r = 0; r < count; r++)
                    widen((const uint16_t *)part->x + at + r * x_stride, depth, own->wide_x + r * DEPTH_BLOCK);
                x = own->wide_x;
                x_stride = DEPTH_BLOCK;
            }
            add_tile(count, x, x_stride, weights, PANEL, depth, block + AHEAD, input_bytes, sums + row * PANEL, PANEL);
        }
    }
    finish_part(part, own);
}

#if defined HAS_BF16_PRODUCT
/* Adds a stretch of the depth, from input `begin` on, of up to STRIP rows to the sums of a split. */
static void add_stretch(
    const struct part *part, long row, long count, long begin, long depth, int fresh, struct scratch *own, float *sums)
{
    const uint16_t *words = (const uint16_t *)part->panel + begin * PANEL;
    const uint16_t *x = (const uint16_t *)part->x + (part->first + row) * part->x_stride + begin;
    const long rest = depth % DEPTH_UNIT, whole = depth - rest;
    if (whole)
        add_strip(x, part->x_stride, count, words, whole, fresh, &own->beside, sums);
    if (rest) {
        memset(own->rest, 0, sizeof own->rest);
        for (long r = 0; r < count; r++)
            memcpy(own->rest + r * DEPTH_UNIT, x + r * part->x_stride + whole, rest * sizeof *x);
        add_strip(
            own->rest, DEPTH_UNIT, count, words + whole * PANEL, DEPTH_UNIT, fresh && !whole, &own->beside, sums);
    }
}

static void multiply_in_bf16(const struct part *part, struct scratch *own)
{
    const struct linear *layer = part->layer;
    const long inputs = layer->inputs, rows = part->end - part->first, split = split_depth(layer);
    const long step = split < BF16_DEPTH_BLOCK ? BF16_DEPTH_BLOCK / split * split : BF16_DEPTH_BLOCK;
    const long apart = (inputs <= step ? STRIP : rows) * PANEL; /* sums of splits */
    for (long begin = 0, end; begin < inputs; begin = end) {
        end = least(begin + step, split < step ? inputs : (begin / split + 1) * split);
        const long depth = end - begin, steps = steps_of(rows, rounded_up(depth, DEPTH_UNIT));
        own->beside.next = end < inputs ? part->panel + end * PANEL * 2 : own->after;
        const int follows = own->beside.next == part->panel + end * PANEL * 2;
        own->beside.bytes = !own->beside.next || (follows && read_unasked(rows))
            ? 0 : rounded_up(depth * PANEL * 2 / steps, 64);
        for (long row = 0, count; row < rows; row += count) {
            count = strip_of(rows - row);
            float *sums = own->sums + (inputs <= step ? own->side * layer->splits * STRIP : row) * PANEL;
            for (long at = begin, to; at < end; at = to) {
                to = least(end, (at / split + 1) * split);
                add_stretch(part, row, count, at, to - at, at % split == 0, own, sums + at / split * apart);
            }
            if (end == inputs) {
                const long first = part->first + row;
                finish_all(&own->finish);
                own->finish = (struct finish){
                    layer, sums, apart, part->output, first, first + count, part->y, 1, part->y_stride};
#if defined HAS_AMX
                own->side = !own->side;
#else
                finish_all(&own->finish); /* as long as the sums are in the first cache */
#endif
            }
        }
    }
    if (inputs > step)
        finish_all(&own->finish);
}
#endif

#if defined HAS_WIDE_PRODUCT
/* Converts the rows of a part to strips, unless the previous part had the same rows. */
static void take_rows(const struct part *part, struct scratch *own)
{
    const long inputs = part->layer->inputs, rows = part->end - part->first;
    const char *x = part->x + part->first * part->x_stride * 2;
    if (own->taken == x && own->taken_rows == rows && own->taken_inputs == inputs)
        return;
    take_wide(x, part->x_stride, rows, inputs, own->strips);
    own->taken = x;
    own->taken_rows = rows;
    own->taken_inputs = inputs;
}

static void multiply_widening(const struct part *part, struct scratch *own)
{
    const struct linear *layer = part->layer;
    const long inputs = rounded_up(layer->inputs, 2), rows = part->end - part->first, strips = strips_of(rows);
    const long split = inputs / layer->splits;
    finish_all(&own->finish); /* of another layer's sums, which these replace */
    take_rows(part, own);
    for (long begin = 0, depth; begin < inputs; begin += depth) {
        depth = least(split - begin % split, WIDE_DEPTH_BLOCK);
        const long ahead = begin * PANEL * 2 + WIDE_AHEAD;
        float *sums = own->sums + begin / split * rows * PANEL;
        const char *block = part->panel + begin * PANEL * 2;
        const char *next = ahead < panel_bytes(layer) || !own->after ? part->panel + ahead
                                                                     : own->after + ahead - panel_bytes(layer);
        for (long strip = 0; strip < strips; strip++) {
            const long row = first_of(strip, rows), count = first_of(strip + 1, rows) - row;
            const struct asked asked = {next + strip * depth * PANEL * 2 / strips, PANEL * 4 / strips};
            add_wide(
                count, own->strips + row * inputs + begin * count, block, depth, begin % split == 0, asked,
                sums + row * PANEL, own->odd + row * PANEL);
        }
        if (layer->splits > 1 && (begin + depth) % split == 0)
            join_halves(rows, sums, own->odd);
    }
    if (layer->splits > 1) {
        finish_part(part, own);
        return;
    }
    if (!layer->partial && !layer->scales && !layer->bias && part->output + PANEL <= layer->outputs) {
        uint16_t *y = (uint16_t *)part->y + part->first * part->y_stride + part->output;
        finish_halves(rows, own->sums, own->odd, y, part->y_stride);
        return;
    }
    join_halves(rows, own->sums, own->odd);
    finish_part(part, own);
}
#endif

#if defined HAS_FP8_PRODUCT
static void multiply_in_fp8(const struct part *part, struct scratch *own)
{
    const struct linear *layer = part->layer;
    const long rows = part->end - part->first;
    finish_all(&own->finish); /* of another layer's sums, which these replace */
#if defined HAS_WIDE_PRODUCT
    take_rows(part, own);
    multiply_fp8(layer, own->strips, rows, part->panel, own->sums, own->odd);
#else
    const uint16_t *x = (const uint16_t *)part->x + part->first * part->x_stride;
    own->beside.bytes = 0;
    multiply_fp8(layer, x, part->x_stride, rows, part->panel, &own->beside, own->sums);
#endif
    finish_part(part, own);
}
#endif

#if defined HAS_INT8_PRODUCT
static void multiply_in_int8(const struct part *part, struct scratch *own)
{
    const struct quantized_part quantized = {
        part->layer, part->x, part->x_stride, part->first, part->end, part->panel,
        part->panel + quantized_panel_bytes(part->layer), own->after};
    finish_all(&own->finish); /* of another layer's sums, which these replace */
#if defined INT8_STRIP
    own->beside.shaped = -1; /* tiles have the shapes of no rows in bf16 */
#endif
    multiply_quantized(&quantized, (struct unit_room *)own->wide, own->sums);
    finish_part(part, own);
}
#endif

/* Multiplies; `after` is what this thread reads next, or null. */
static void multiply_part(const struct part *part, const char *after, struct scratch *own)
{
    const struct linear *layer = part->layer;
    own->after = after;
#if defined HAS_INT8_PRODUCT
    if (takes_int8(layer)) {
        multiply_in_int8(part, own);
        return;
    }
#endif
#if defined HAS_FP8_PRODUCT
    if (takes_fp8(layer)) {
        multiply_in_fp8(part, own);
        return;
    }
#endif
    if (layer->format == BF16 && layer->weights == BF16) {
#if defined HAS_BF16_PRODUCT
        multiply_in_bf16(part, own);
#else
        multiply_widening(part, own);
#endif
        return;
    }
    multiply_in_fp32(part, own);
}

INLINE void begin_parts(struct scratch *own, float *strips)
{
    own->finish = (struct finish){0};
#if defined HAS_WIDE_PRODUCT
    own->strips = strips;
    own->taken = 0;
#endif
    (void)strips;
#if defined HAS_BF16_PRODUCT
    own->beside = (struct beside){.before = &own->finish};
    own->side = 0;
#endif
}

INLINE void end_parts(struct scratch *own)
{
    finish_all(&own->finish);
#if defined HAS_AMX
    if (own->beside.shaped)
        release_tiles();
#endif
}

#endif
