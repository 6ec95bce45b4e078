/* y = x W^T + b for x [rows, inputs] in fp32, or in bf16 with fp32 sums. W is of the format of x, or int8 with a scale for
   each output, which multiplies the sum.

   W is packed once into panels of PANEL outputs. In a panel, as many neighbours of the depth stand beside each other as
   make 32 bits: fp32 [input][PANEL], bf16 [input / 2][PANEL][2], int8 [input / 4][PANEL][4]. Missing outputs and inputs
   are zero. Where the processor multiplies bf16, a bf16 panel is what its instructions take as it is; in all other cases
   a block of the depth becomes what is multiplied (bf16 there, else fp32), once for a block of rows. Every number of rows
   runs through the same panels in the same order of the depth. */

#include "linear.h"
#include "product_bf16.h"

#if defined HAS_AMX
#define ROW_BLOCK 288 /* rows of x that stay in the second cache, while the panels pass; a multiple of strips and tiles */
#else
#define ROW_BLOCK 96
#define DEPTH_UNIT 4
#endif
#define X_BYTES (1 << 20) /* … and so many bytes of them at most, where that leaves LEAST_ROWS */
#define LEAST_ROWS 96
#define DEPTH_BLOCK 256     /* of what is made fp32, or used as fp32: stays in the first cache, while the rows pass */
#define BF16_DEPTH_BLOCK 640 /* of a panel that is used as it is */
#define AHEAD 16384         /* bytes: how far before its use an fp32 panel is asked for */

INLINE long weight_bytes(long weights) { return weights == INT8 ? 1 : weights == BF16 ? 2 : 4; }
INLINE long packed_depth(const struct linear *layer)
{
    return layer->weights == FP32 ? layer->inputs : rounded_up(layer->inputs, DEPTH_UNIT);
}
INLINE long panel_bytes(const struct linear *layer)
{
    return packed_depth(layer) * PANEL * weight_bytes(layer->weights);
}

EXPORT long baton_packed_bytes(const struct linear *layer)
{
    return rounded_up(layer->outputs, PANEL) / PANEL * panel_bytes(layer);
}

/* `weight` is [outputs, inputs], contiguous, in the weights' format. */
EXPORT void baton_pack(const struct linear *layer, const char *weight, char *packed)
{
    const long size = weight_bytes(layer->weights), group = 4 / size, depth = packed_depth(layer);
#pragma omp parallel for schedule(static)
    for (long panel = 0; panel < rounded_up(layer->outputs, PANEL) / PANEL; panel++) {
        char *to = packed + panel * panel_bytes(layer);
        for (long k = 0; k < depth; k += group)
            for (long output = panel * PANEL; output < (panel + 1) * PANEL; output++, to += 4) {
                const long there = output < layer->outputs ? most(0, least(group, layer->inputs - k)) : 0;
                memset(to, 0, 4);
                memcpy(to, weight + (output * layer->inputs + k) * size, there * size);
            }
    }
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

static void sum_in_fp32(
    const struct linear *layer, const char *x, long x_stride, long rows, const char *panel, float *sums)
{
    float wide[DEPTH_BLOCK * PANEL], wide_x[TILE_ROWS * DEPTH_BLOCK];
    const long input_bytes = PANEL * weight_bytes(layer->weights);
    memset(sums, 0, rows * PANEL * sizeof *sums);
    for (long begin = 0; begin < layer->inputs; begin += DEPTH_BLOCK) {
        const long depth = least(layer->inputs - begin, DEPTH_BLOCK);
        const char *block = panel + begin * input_bytes;
        if (layer->weights != FP32)
            widen_weights(layer->weights, block, depth, wide);
        for (long row = 0; row < rows; row += TILE_ROWS) {
            const long count = least(rows - row, TILE_ROWS);
            const float *own_x = (const float *)x + row * x_stride + begin;
            for (long r = 0; layer->format == BF16 && r < count; r++)
                widen((const uint16_t *)x + (row + r) * x_stride + begin, depth, wide_x + r * DEPTH_BLOCK);
            add_tile(
                count, layer->format == BF16 ? wide_x : own_x, layer->format == BF16 ? DEPTH_BLOCK : x_stride,
                layer->weights == FP32 ? (const float *)block : wide, PANEL, depth, block + AHEAD, input_bytes,
                sums + row * PANEL, PANEL);
        }
    }
}

#if defined HAS_BF16_PRODUCT
/* `depth` rows of an int8 panel as bf16 [depth / 2][PANEL][2], which holds them exactly. */
static void widen_to_bf16(const char *panel, long depth, uint16_t *wide)
{
    for (long k = 0; k < depth; k += 4)
        for (long column = 0; column < PANEL; column += LANES, panel += sizeof(uvec)) {
            uvec word, bits[4];
            memcpy(&word, panel, sizeof word);
            for (int i = 0; i < 4; i++)
                bits[i] = (uvec)__builtin_convertvector((ivec)(word << (24 - 8 * i)) >> 24, vec);
            for (int i = 0; i < 4; i += 2) {
                const uvec pair = bits[i] >> 16 | bits[i + 1];
                memcpy(wide + ((k + i) * PANEL + column * 2), &pair, sizeof pair);
            }
        }
}

static void add_bf16_block(
    const uint16_t *x, long x_stride, long rows, const uint16_t *block, long depth, int fresh, const char *next,
    long next_bytes, float *sums, long *shaped)
{
#if defined HAS_AMX
    if (amx_allowed) {
        add_by_tiles(x, x_stride, rows, block, depth, fresh, next, next_bytes, sums, shaped);
        return;
    }
#endif
    add_by_dot_products(x, x_stride, rows, block, depth, fresh, next, next_bytes, sums);
}

static void sum_in_bf16(
    const struct linear *layer, const uint16_t *x, long x_stride, long rows, const char *panel, float *sums, long *shaped)
{
    uint16_t wide[DEPTH_BLOCK * PANEL], rest[ROW_BLOCK * DEPTH_UNIT];
    const int quantized = layer->weights == INT8;
    const long input_bytes = PANEL * weight_bytes(layer->weights), inputs = layer->inputs;
    const long blocks = rounded_up(inputs, BF16_DEPTH_BLOCK) / BF16_DEPTH_BLOCK;
    const long step = quantized ? DEPTH_BLOCK : rounded_up(rounded_up(inputs, blocks) / blocks, DEPTH_UNIT);
    for (long begin = 0; begin < inputs; begin += step) {
        const long depth = least(inputs - begin, step), whole = depth / DEPTH_UNIT * DEPTH_UNIT;
        const char *block = panel + begin * input_bytes, *next = block + step * input_bytes;
        if (quantized) {
            widen_to_bf16(block, rounded_up(depth, DEPTH_UNIT), wide);
            block = (const char *)wide;
        }
        if (whole)
            add_bf16_block(
                x + begin, x_stride, rows, (const uint16_t *)block, whole, begin == 0, next, step * input_bytes, sums, shaped);
        if (whole < depth) {
            memset(rest, 0, rows * DEPTH_UNIT * sizeof *rest);
            for (long row = 0; row < rows; row++)
                memcpy(rest + row * DEPTH_UNIT, x + row * x_stride + begin + whole, (depth - whole) * sizeof *rest);
            add_bf16_block(
                rest, DEPTH_UNIT, rows, (const uint16_t *)block + whole * PANEL, DEPTH_UNIT, begin + whole == 0, next, 0, sums, shaped);
        }
    }
}
#endif

/* One row block of one panel, from sums to y. */
INLINE void finish(
    const struct linear *layer, enum format format, const float *sums, long rows, long output, char *y, long first)
{
    for (long column = 0; column < least(layer->outputs - output, PANEL); column += LANES) {
        const long left = layer->outputs - output - column;
        const vec offset = layer->bias ? load_first(format, layer->bias, output + column, left) : (vec){0};
        const vec scale = layer->scales ? load_first(FP32, layer->scales, output + column, left) : all(1);
        for (long row = 0; row < rows; row++)
            store_first(
                format, y, (first + row) * layer->outputs + output + column,
                load(FP32, sums, row * PANEL + column) * scale + offset, left);
    }
}

EXPORT void baton_linear(const struct linear *layer, const char *x, long x_stride, long rows, char *y)
{
    const long size = layer->format == FP32 ? 4 : 2, panels = rounded_up(layer->outputs, PANEL) / PANEL;
    if (rows == 0)
        return;
    const long fitting = X_BYTES / (layer->inputs * size) / LEAST_ROWS * LEAST_ROWS;
    const long most_rows = least(ROW_BLOCK, most(LEAST_ROWS, fitting));
    const long blocks = rounded_up(rows, most_rows) / most_rows;
    const long block_rows = least(most_rows, rounded_up(rounded_up(rows, blocks) / blocks, 32));
#pragma omp parallel
    {
        float sums[ROW_BLOCK * PANEL];
        long shaped = 0;
#pragma omp for collapse(2) schedule(static)
        for (long block = 0; block < blocks; block++)
            for (long panel = 0; panel < panels; panel++) {
                const long first = block * block_rows, count = least(rows - first, block_rows);
                const char *own_x = x + first * x_stride * size, *own_panel = (const char *)layer->packed + panel * panel_bytes(layer);
#if defined HAS_BF16_PRODUCT
                if (layer->format == BF16)
                    sum_in_bf16(layer, (const uint16_t *)own_x, x_stride, count, own_panel, sums, &shaped);
                else
#endif
                    sum_in_fp32(layer, own_x, x_stride, count, own_panel, sums);
                if (layer->format == FP32)
                    finish(layer, FP32, sums, count, panel * PANEL, y, first);
                else
                    finish(layer, BF16, sums, count, panel * PANEL, y, first);
            }
#if defined HAS_AMX
        if (shaped)
            release_tiles();
#endif
    }
}
