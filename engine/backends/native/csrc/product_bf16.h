/* A block of rows times a panel in bf16, summed in fp32, where the processor has an instruction for it.

   A panel is [depth / 2][PANEL][2]: two neighbours of the depth beside each other, as both instructions take them. The
   tiles of AMX are used where the kernel allows them, AVX-512's dot product otherwise; they round differently, so a
   process uses one of them throughout. `depth` is a multiple of DEPTH_UNIT; missing elements are zeros. */

#ifndef PRODUCT_BF16_H
#define PRODUCT_BF16_H

#include "amx.h"
#include "finish.h"

#if defined HAS_PAIRS
#define HAS_BF16_PRODUCT

#if defined HAS_AMX
#define DEPTH_UNIT 32 /* of a tile */
#define STRIP 32      /* rows: two tiles */
#else
#define DEPTH_UNIT 4 /* a group of int8 weights */
#define STRIP TILE_ROWS
#endif

/* Work that is done along with every step of the depth: prefetching, and finishing earlier sums. */
struct beside {
    const char *next; /* memory that is asked for: what comes next … */
    long bytes;       /* … so many with each step */
    struct finish *before;
    long shaped; /* rows that this thread's tiles are shaped for, or 0 */
};

INLINE void ask(struct beside *beside)
{
    const char *line = beside->next, *end = line + beside->bytes;
    for (; line < end; line += 64)
        __builtin_prefetch(line, 0, 2); /* into the second cache: the first is full of what is in use */
    beside->next = line;
}

INLINE void add_dot_products(
    const int rows, const uint16_t *x, long x_stride, const uint16_t *panel, long depth, int fresh,
    struct beside *beside, float *sums)
{
    vec sum[TILE_ROWS][TILE_VECTORS];
    struct beside own = *beside; /* in registers */
    load_sums(rows, fresh, sums, PANEL, sum);
    for (long k = 0; k < depth; k += 2) {
        uvec columns[TILE_VECTORS];
        ask(&own);
#pragma GCC unroll 4
        for (int v = 0; v < TILE_VECTORS; v++)
            memcpy(&columns[v], panel + k * PANEL + v * 2 * LANES, sizeof *columns);
#pragma GCC unroll 6
        for (int row = 0; row < rows; row++) {
            uint32_t pair;
            memcpy(&pair, x + row * x_stride + k, sizeof pair);
#pragma GCC unroll 4
            for (int v = 0; v < TILE_VECTORS; v++)
                sum[row][v] = add_pairs(sum[row][v], pair - (uvec){0}, columns[v]);
        }
    }
    store_sums(rows, sum, sums, PANEL);
    beside->next = own.next;
}

#if defined HAS_AMX
/* Shapes for a strip of `rows`: up to 16 are tiles 0 … 4; more are 16 of them and tiles 2, 3 and 5. */
static void shape_strip(long rows)
{
    struct tile_shapes shapes = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        shapes.row_bytes[tile] = 64;
        shapes.rows[tile] = 16;
    }
    if (rows < 16)
        for (int tile = 0; tile < 5; tile++)
            shapes.rows[tile] = rows;
    else if (rows > 16)
        shapes.rows[2] = shapes.rows[3] = shapes.rows[5] = rows - 16;
    shape_tiles(&shapes);
}

#define PANEL_BYTES (PANEL * 4) /* of a pair of the depth, and of a row of sums */

/* Up to 16 rows by 64 columns: each weight is used once, so they are taken in their order in memory. */
static void add_low_strip(
    const uint16_t *x, long x_stride, const uint16_t *panel, long depth, int fresh, struct beside *beside,
    float *sums)
{
    if (fresh) {
        TILE_ZERO(0); TILE_ZERO(1); TILE_ZERO(2); TILE_ZERO(3);
    } else {
        TILE_LOAD(0, sums, PANEL_BYTES); TILE_LOAD(1, sums + 16, PANEL_BYTES);
        TILE_LOAD(2, sums + 32, PANEL_BYTES); TILE_LOAD(3, sums + 48, PANEL_BYTES);
    }
    for (long k = 0; k < depth; k += DEPTH_UNIT) {
        const uint16_t *words = panel + k * PANEL;
        ask(beside);
        finish_row(beside->before);
        TILE_LOAD(4, x + k, x_stride * 2);
        TILE_LOAD(5, words, PANEL_BYTES);
        TILE_ADD_PRODUCT(0, 4, 5);
        TILE_LOAD(6, words + 32, PANEL_BYTES);
        TILE_ADD_PRODUCT(1, 4, 6);
        TILE_LOAD(7, words + 64, PANEL_BYTES);
        TILE_ADD_PRODUCT(2, 4, 7);
        TILE_LOAD(5, words + 96, PANEL_BYTES);
        TILE_ADD_PRODUCT(3, 4, 5);
    }
    TILE_STORE(0, sums, PANEL_BYTES); TILE_STORE(1, sums + 16, PANEL_BYTES);
    TILE_STORE(2, sums + 32, PANEL_BYTES); TILE_STORE(3, sums + 48, PANEL_BYTES);
}

/* 17 … 32 rows by 32 columns: every tile that is loaded is used twice. */
static void add_high_strip(
    const uint16_t *x, long x_stride, const uint16_t *panel, long depth, int fresh, struct beside *beside,
    float *sums)
{
    if (fresh) {
        TILE_ZERO(0); TILE_ZERO(1); TILE_ZERO(2); TILE_ZERO(3);
    } else {
        TILE_LOAD(0, sums, PANEL_BYTES); TILE_LOAD(1, sums + 16, PANEL_BYTES);
        TILE_LOAD(2, sums + 16 * PANEL, PANEL_BYTES); TILE_LOAD(3, sums + 16 * PANEL + 16, PANEL_BYTES);
    }
    for (long k = 0; k < depth; k += DEPTH_UNIT) {
        const uint16_t *words = panel + k * PANEL;
        ask(beside);
        finish_row(beside->before);
        TILE_LOAD(4, x + k, x_stride * 2);
        TILE_LOAD(6, words, PANEL_BYTES);
        TILE_LOAD(7, words + 32, PANEL_BYTES);
        TILE_LOAD(5, x + 16 * x_stride + k, x_stride * 2);
        TILE_ADD_PRODUCT(0, 4, 6);
        TILE_ADD_PRODUCT(1, 4, 7);
        TILE_ADD_PRODUCT(2, 5, 6);
        TILE_ADD_PRODUCT(3, 5, 7);
    }
    TILE_STORE(0, sums, PANEL_BYTES); TILE_STORE(1, sums + 16, PANEL_BYTES);
    TILE_STORE(2, sums + 16 * PANEL, PANEL_BYTES); TILE_STORE(3, sums + 16 * PANEL + 16, PANEL_BYTES);
}

#endif

/* Rows of a block's next strip. One to three rows alone would wait for the panel: 7 to 9 rows are two halves. */
INLINE long strip_of(long rows)
{
    return least(rows, STRIP == TILE_ROWS && rows > STRIP && rows <= STRIP + 3 ? (rows + 1) / 2 : STRIP);
}

/* Steps of the depth that a block of rows takes, in all its strips together. */
INLINE long steps_of(long rows, long depth)
{
#if defined HAS_AMX
    if (amx_allowed)
        return (2 * (rows / STRIP) + (rows % STRIP > 16 ? 2 : rows % STRIP > 0)) * (depth / DEPTH_UNIT);
#endif
    return rounded_up(rows, TILE_ROWS) / TILE_ROWS * (depth / 2);
}

/* Whether panels that follow each other are read as fast as memory allows without being asked for: weights that are used
   once. Asking for a panel ahead then disturbs the processor's own prefetcher: 23 to 27 GB/s in place of 32 on a Zen 4. */
INLINE int read_unasked(long rows)
{
#if defined HAS_AMX
    if (amx_allowed)
        return 0;
#endif
    return rows <= TILE_ROWS;
}

/* sums = x panel, or with `fresh` 0 sums += x panel, for up to STRIP rows; `sums` is [rows, PANEL]. */
static void add_strip(
    const uint16_t *x, long x_stride, long rows, const uint16_t *panel, long depth, int fresh, struct beside *beside,
    float *sums)
{
#if defined HAS_AMX
    if (amx_allowed) {
        if (beside->shaped != rows)
            shape_strip(beside->shaped = rows);
        if (rows > 16)
            for (long column = 0; column < PANEL; column += 32)
                add_high_strip(x, x_stride, panel + column * 2, depth, fresh, beside, sums + column);
        else
            add_low_strip(x, x_stride, panel, depth, fresh, beside, sums);
        return;
    }
#endif
    long row = 0;
    do { /* once, where a strip is a tile: a loop would take registers that the innermost needs */
#define TILE(ROWS) \
    add_dot_products(ROWS, x + row * x_stride, x_stride, panel, depth, fresh, beside, sums + row * PANEL)
        FOR_ROWS(rows - row, TILE)
#undef TILE
    } while (STRIP > TILE_ROWS && (row += TILE_ROWS) < rows);
}

#endif
#endif
