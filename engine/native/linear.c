/* y = x W^T + b for x [rows, inputs], in fp32, or in bf16 with fp32 sums.

   W is packed once into panels of PANEL outputs: fp32 as [panel][input][PANEL], bf16 as [panel][input / 2][PANEL][2],
   which is what the AVX-512 dot product takes: two inputs of an output beside each other. Without that instruction a
   pair is a word whose halves are widened, by a shift and a mask, a block of the depth at a time. Missing outputs and a
   missing last input are zero. Every number of rows runs through the same panels in the same order of the depth, and a
   weight is read from memory once for ROW_BLOCK rows. */

#include "product.h"

#define ROW_BLOCK 96    /* rows of x that stay in the second cache, while the panels pass */
#define DEPTH_BLOCK 256 /* of a panel, stays in the first cache, while the rows pass; even */
#define AHEAD 1024      /* bytes: how far before its use a panel is asked for */

EXPORT long baton_packed_elements(int format, long outputs, long inputs)
{
    return rounded_up(outputs, PANEL) * (format == FP32 ? inputs : rounded_up(inputs, 2));
}

/* `weight` is [outputs, inputs], contiguous. */
EXPORT void baton_pack(int format, const void *weight, long outputs, long inputs, void *packed)
{
    const long pair = format == FP32 ? 1 : 2;
    const long depth = rounded_up(inputs, pair);
#pragma omp parallel for schedule(static)
    for (long panel = 0; panel < rounded_up(outputs, PANEL) / PANEL; panel++)
        for (long k = 0; k < depth; k++)
            for (long column = 0; column < PANEL; column++) {
                const long output = panel * PANEL + column;
                const int there = output < outputs && k < inputs;
                const long from = output * inputs + k;
                const long to = (panel * depth + k / pair * pair) * PANEL + column * pair + k % pair;
                if (format == FP32)
                    ((float *)packed)[to] = there ? ((const float *)weight)[from] : 0;
                else
                    ((uint16_t *)packed)[to] = there ? ((const uint16_t *)weight)[from] : 0;
            }
}

#if defined __AVX512BF16__
INLINE void add_dot_products(
    const int rows, const uint16_t *x, long x_stride, const uint16_t *panel, long inputs, float (*sums)[PANEL])
{
    vec sum[TILE_ROWS][TILE_VECTORS] = {{{0}}};
    for (long k = 0; k < inputs; k += 2) {
        __m512bh word[TILE_VECTORS];
        memcpy(word, panel + k * PANEL, sizeof word);
        for (int v = 0; v < TILE_VECTORS; v++)
            __builtin_prefetch((const char *)(panel + k * PANEL) + AHEAD + v * sizeof word[v]);
#pragma GCC unroll 6
        for (int row = 0; row < rows; row++) {
            uint32_t pair = 0;
            memcpy(&pair, x + row * x_stride + k, k + 1 < inputs ? 4 : 2);
            const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
            for (int v = 0; v < TILE_VECTORS; v++)
                sum[row][v] = (vec)_mm512_dpbf16_ps(sum[row][v], both, word[v]);
        }
    }
    memcpy(sums, sum, rows * sizeof sum[0]);
}

static void bf16_panel(
    const uint16_t *x, long x_stride, long rows, const uint16_t *panel, long inputs, float (*sums)[PANEL])
{
    for (long row = 0; row < rows; row += TILE_ROWS) {
#define TILE(ROWS) add_dot_products(ROWS, x + row * x_stride, x_stride, panel, inputs, sums + row)
        FOR_ROWS(rows - row, TILE)
#undef TILE
    }
}
#else
static void bf16_panel(
    const uint16_t *x, long x_stride, long rows, const uint16_t *panel, long inputs, float (*sums)[PANEL])
{
    float wide[DEPTH_BLOCK][PANEL], wide_x[TILE_ROWS][DEPTH_BLOCK];
    for (long begin = 0; begin < inputs; begin += DEPTH_BLOCK) {
        const long depth = least(inputs - begin, DEPTH_BLOCK);
        for (long k = 0; k < depth; k += 2) {
            const uint16_t *words = panel + (begin + k) * PANEL;
#pragma GCC unroll 4
            for (int v = 0; v < TILE_VECTORS; v++) {
                uvec word;
                memcpy(&word, words + 2 * v * LANES, sizeof word);
                store(FP32, wide[k], v * LANES, (vec)(word << 16));
                store(FP32, wide[k + 1], v * LANES, (vec)(word & 0xffff0000u));
            }
        }
        for (long row = 0; row < rows; row += TILE_ROWS) {
            const long count = least(rows - row, TILE_ROWS);
            for (long r = 0; r < count; r++)
                widen(x + (row + r) * x_stride + begin, depth, wide_x[r]);
            add_tile(count, wide_x[0], DEPTH_BLOCK, wide[0], PANEL, depth,
                     (const char *)(panel + (begin + depth) * PANEL), PANEL * 2, sums[row], PANEL);
        }
    }
}
#endif

static void fp32_panel(
    const float *x, long x_stride, long rows, const float *panel, long inputs, float (*sums)[PANEL])
{
    for (long begin = 0; begin < inputs; begin += DEPTH_BLOCK)
        for (long row = 0; row < rows; row += TILE_ROWS)
            add_tile(
                least(rows - row, TILE_ROWS), x + row * x_stride + begin, x_stride,
                panel + begin * PANEL, PANEL, least(inputs - begin, DEPTH_BLOCK),
                (const char *)(panel + begin * PANEL) + AHEAD, PANEL * 4, sums[row], PANEL);
}

/* `x` has rows `x_stride` elements apart; `y` is [rows, outputs], contiguous; `bias` may be null. */
EXPORT void baton_linear(
    int format, const char *x, long x_stride, long rows, long inputs, const char *packed, const char *bias, char *y,
    long outputs)
{
    const long size = format == FP32 ? 4 : 2;
    const long panel_bytes = size * baton_packed_elements(format, PANEL, inputs);
    const long panels = rounded_up(outputs, PANEL) / PANEL, blocks = rounded_up(rows, ROW_BLOCK) / ROW_BLOCK;
#pragma omp parallel for collapse(2) schedule(static)
    for (long block = 0; block < blocks; block++)
        for (long panel = 0; panel < panels; panel++) {
            const long first = block * ROW_BLOCK, count = least(rows - first, ROW_BLOCK), output = panel * PANEL;
            const char *own_x = x + first * x_stride * size, *own_panel = packed + panel * panel_bytes;
            float sums[ROW_BLOCK][PANEL];
            memset(sums, 0, count * sizeof sums[0]);
            if (format == FP32)
                fp32_panel((const float *)own_x, x_stride, count, (const float *)own_panel, inputs, sums);
            else
                bf16_panel((const uint16_t *)own_x, x_stride, count, (const uint16_t *)own_panel, inputs, sums);
            for (long column = 0; column < least(outputs - output, PANEL); column += LANES) {
                const long left = outputs - output - column;
                const vec offset = bias ? load_first(format, bias, output + column, left) : (vec){0};
                for (long row = 0; row < count; row++)
                    store_first(
                        format, y, (first + row) * outputs + output + column,
                        load(FP32, sums[row], column) + offset, left);
            }
        }
}
