/* A tile of positions for a group of rows in fp32 arithmetic: for fp32 pools, and, where the processor has no products of
   bf16, for quantized ones and those whose values are no whole vectors. */

#ifndef ATTENTION_FP32_H
#define ATTENTION_FP32_H

#include "attention_step.h"
#include "product.h"
#include "softmax.h"
#include "transpose.h"

#define FP32_GROUP (4 * TILE_ROWS)

struct fp32_scratch {
    float queries[MAX_ROW_NUMBERS], scores[FP32_GROUP * TILE];
    float keys[MAX_DIM * TILE];   /* [TILE / PANEL, dim, PANEL] */
    float values[TILE * MAX_DIM]; /* of blocks that are bf16, or of values that are no whole number of panels */
};

static long query_width(const struct attention *step) { return rounded_up(step->dim, LANES); }

static void take_fp32_query(
    const struct attention *step, const void *query, float scale, long row, struct fp32_scratch *own)
{
    const long dim = step->dim;
    for (long d = 0; d < dim; d += LANES) {
        const vec scaled = load_first(step->format, query, d, dim - d) * scale;
        store(FP32, own->queries, row * query_width(step) + d, scaled);
    }
}

/* Values are used where they lie if they can be. */
static int copied(const struct attention *step) { return step->format != FP32 || step->value_dim % PANEL; }

/* A block [vectors, block, dim] whose first position is `at` in the tile. */
static void prepare_fp32(
    const struct attention *step, const char *kv, long at, const char *next, struct fp32_scratch *own)
{
    const long dim = step->dim, value_dim = step->value_dim, block = step->block, width = state_width(step);
    for (long t = at; t < at + block; t = rounded_up(t + 1, PANEL)) {
        const long rows = least(rounded_up(t + 1, PANEL), at + block) - t;
        take_columns(
            step->format, kv + (t - at) * token_bytes(step), rows, dim, own->keys + t / PANEL * dim * PANEL + t % PANEL,
            PANEL, next + (t - at) * token_bytes(step));
    }
    if (copied(step))
        for (long t = 0; t < block; t++)
            for (long d = 0; d < value_dim; d += LANES)
                store(
                    FP32, own->values, (at + t) * width + d,
                    load_first(step->format, kv + value_place(step), t * dim + d, value_dim - d));
}

/* sums += a b for `rows` rows and `panels` panels of b, which begin `panel_step` elements apart. */
static void add_panels(
    long rows, const float *a, long a_stride, const float *b, long b_stride, long panel_step, long depth, long panels,
    float *sums, long sums_stride)
{
    for (long panel = 0; panel < panels; panel++)
        for (long row = 0; row < rows; row += TILE_ROWS)
            add_tile(
                least(rows - row, TILE_ROWS), a + row * a_stride, a_stride, b + panel * panel_step, b_stride, depth,
                0, 0, sums + row * sums_stride + panel * PANEL, sums_stride);
}

/* The states of queries `first` … with one tile, of which `blocks` are at their places. */
static void attend_fp32(
    const struct attention *step, const struct attention_params *params, const char *const *blocks, const struct visible *visible,
    long first, long rows, struct fp32_scratch *own, struct state tile)
{
    const long dim = step->dim, width = state_width(step), block = step->block;
    const long queries = query_width(step);
    const long from = visible->all.first / PANEL * PANEL, panels = rounded_up(visible->all.end - from, PANEL) / PANEL;
    memset(own->scores, 0, rows * TILE * sizeof(float));
    add_panels(
        rows, own->queries + first * queries, queries, own->keys + from * dim, PANEL, dim * PANEL, dim, panels,
        own->scores + from, TILE);
    if (params->softcap)
        for (long row = 0; row < rows; row++)
            cap(own->scores + row * TILE, from, rounded_up(visible->all.end, LANES), 1, params->softcap);
    for (long row = 0; row < rows; row++)
        soften(
            own->scores + row * TILE, visible->all.first / LANES * LANES, rounded_up(visible->all.end, LANES), visible->row[row],
            visible->hidden ? visible->hidden + row : 0, tile.maximum + row, tile.total + row);
    memset(tile.sums, 0, rows * width * sizeof(float));
    for (long at = visible->all.first, next; at < visible->all.end; at = next) {
        next = least(visible->all.end, (at / block + 1) * block);
        const float *values = (const float *)(blocks[at / block] + value_place(step)) + at % block * dim;
        add_panels(
            rows, own->scores + at, TILE, copied(step) ? own->values + at * width : values, copied(step) ? width : dim,
            PANEL, next - at, rounded_up(step->value_dim, PANEL) / PANEL, tile.sums, width);
    }
}

#endif
