/* Causal attention over paged KV: softmax(q k^T scale) v for each query row, by online softmax.

   A pool layer is [blocks, kv_heads, 2, block, dim]. The query heads that share a KV head are rows beside each other,
   so each KV block is read once for all of them, where it lies. A tile of rows goes over TILE positions at a time, which
   begin at multiples of TILE in the sequence, whatever the step began with; a row that sees none of them skips them. So
   a row's bits depend on its query and its sequence's KV only. What no row of a tile may see does not reach its values:
   slots that were never written may hold anything. */

#include "product.h"

#define TILE 64 /* positions between two changes of the running maximum; a multiple of every block size */
#define ROWS 24
#define MAX_DIM 256

struct tile {
    int64_t work;     /* row of the block table */
    int64_t token;    /* the batch's row of the work's first token … */
    int64_t position; /* … and its position in the sequence */
    int64_t first;    /* first row of this tile: rows are token x shared heads of the work */
    int64_t rows;
};

struct attention {
    int64_t format, kv_heads, shared, dim, block;
    double scale;
    const int64_t *tables; /* [works, table_stride] */
    int64_t table_stride;
    const struct tile *tiles;
    int64_t tile_count;
};

struct scratch {
    float queries[ROWS * MAX_DIM], sums[ROWS * MAX_DIM], scores[ROWS][TILE];
    float keys[MAX_DIM * TILE]; /* [TILE / PANEL, dim, PANEL] */
    float wide[2 * TILE * MAX_DIM]; /* bf16 blocks as fp32 */
    float values[TILE * MAX_DIM];   /* of a block, where a head is no whole number of panels */
    float maximum[ROWS], total[ROWS];
};

#if LANES == 8
#define LOW 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#endif
#if defined __clang__
#define INTERLEAVED(A, B, ...) __builtin_shufflevector(A, B, __VA_ARGS__)
#else
#define INTERLEAVED(A, B, ...) __builtin_shuffle(A, B, (ivec){__VA_ARGS__})
#endif

/* Each round turns an element's row and column bits by one; after as many rounds as a row number has bits, rows are
   columns. */
INLINE void transpose(vec square[LANES])
{
#pragma GCC unroll 4
    for (int done = 1; done < LANES; done *= 2) {
        vec turned[LANES];
#pragma GCC unroll 8
        for (int i = 0; i < LANES / 2; i++) {
            turned[2 * i] = INTERLEAVED(square[i], square[i + LANES / 2], LOW);
            turned[2 * i + 1] = INTERLEAVED(square[i], square[i + LANES / 2], HIGH);
        }
        memcpy(square, turned, sizeof turned);
    }
}

/* A block's keys [block, dim] become columns `at` … of `keys`. */
static void take_keys(const float *block_keys, long block, long dim, float *keys, long at)
{
    for (long t = 0; t < block; t += LANES) {
        float *panel = keys + (at + t) / PANEL * dim * PANEL + (at + t) % PANEL;
        for (long d = 0; d < dim; d += LANES) {
            vec square[LANES] = {{0}};
            for (long i = 0; i < least(LANES, block - t); i++)
                square[i] = load_first(FP32, block_keys, (t + i) * dim + d, dim - d);
            transpose(square);
            for (long i = 0; i < least(LANES, dim - d); i++)
                store_first(FP32, panel, (d + i) * PANEL, square[i], block - t);
        }
    }
}

/* Scores of positions from … end - 1 become weights, 0 for those outside low … high - 1. Returns what the row's sums so
   far are to be multiplied by. */
static float soften(float *scores, long from, long end, long low, long high, float *maximum, float *total)
{
    static const ivec lane = LANE_NUMBERS;
    if (high <= low) {
        memset(scores + from, 0, (end - from) * sizeof *scores);
        return 1;
    }
    vec best = all(-INFINITY), sum = {0};
    for (long t = from; t < end; t += LANES) {
        const ivec position = lane + (int32_t)t;
        const ivec seen = (position >= (int32_t)low) & (position < (int32_t)high);
        const vec masked = chosen(seen, load(FP32, scores, t), all(-INFINITY));
        store(FP32, scores, t, masked);
        best = larger(masked, best);
    }
    const float found = largest_of(best), before = *maximum;
    const float now = found > before ? found : before;
    for (long t = from; t < end; t += LANES) {
        const vec weight = exponential(load(FP32, scores, t) - now);
        store(FP32, scores, t, weight);
        sum += weight;
    }
    const float factor = exponential(all(before - now))[0];
    *maximum = now;
    *total = *total * factor + sum_of(sum);
    return factor;
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

static void attend_tile(
    const struct attention *step, const struct tile *tile, long head, const void *queries,
    long query_stride, const void *pool, long window, void *out, struct scratch *own)
{
    const enum format format = step->format;
    const long dim = step->dim, block = step->block, block_side = block * dim, shared = step->shared;
    const long width = rounded_up(dim, PANEL), rows = tile->rows, heads = step->kv_heads * shared;
    const int64_t *table = step->tables + tile->work * step->table_stride;
    for (long row = 0; row < rows; row++) {
        const long token = tile->token + (tile->first + row) / shared;
        const long from = token * query_stride + (head * shared + (tile->first + row) % shared) * dim;
        for (long d = 0; d < dim; d += LANES)
            store(FP32, own->queries, row * width + d, load_first(format, queries, from + d, dim - d) * (float)step->scale);
        own->maximum[row] = -INFINITY;
        own->total[row] = 0;
    }
    memset(own->sums, 0, rows * width * sizeof(float));
    const long first_position = tile->position + tile->first / shared;
    const long end = tile->position + (tile->first + rows - 1) / shared + 1;
    const long begin = window ? most(0, first_position - window + 1) : 0;
    for (long base = begin / TILE * TILE; base < end; base += TILE) {
        const long count = least(TILE, end - base), first = most(0, begin - base) / block * block;
        const long from = first / PANEL * PANEL, panels = rounded_up(count - from, PANEL) / PANEL;
        const float *kv[TILE];
        for (long at = first; at < count; at += block) {
            const long place = (table[(base + at) / block] * step->kv_heads + head) * 2 * block_side;
            if (format == FP32) {
                kv[at] = (const float *)pool + place;
            } else {
                kv[at] = own->wide + 2 * at * dim;
                widen((const uint16_t *)pool + place, 2 * block_side, own->wide + 2 * at * dim);
            }
            take_keys(kv[at], block, dim, own->keys, at);
        }
        memset(own->scores, 0, rows * sizeof own->scores[0]);
        add_panels(
            rows, own->queries, width, own->keys + from * dim, PANEL, dim * PANEL, dim, panels,
            own->scores[0] + from, TILE);
        for (long row = 0; row < rows; row++) {
            const long position = tile->position + (tile->first + row) / shared - base;
            const float factor = soften(
                own->scores[row], from, rounded_up(count, LANES), window ? most(0, position - window + 1) : 0,
                least(position + 1, TILE), &own->maximum[row], &own->total[row]);
            for (long d = 0; factor != 1 && d < width; d += LANES)
                store(FP32, own->sums, row * width + d, load(FP32, own->sums, row * width + d) * factor);
        }
        for (long at = first; at < count; at += block) {
            const long tokens = least(block, count - at);
            const float *values = kv[at] + block_side;
            if (dim != width) {
                for (long t = 0; t < tokens; t++)
                    for (long d = 0; d < dim; d += LANES)
                        store(FP32, own->values, t * width + d, load_first(FP32, values, t * dim + d, dim - d));
                values = own->values;
            }
            add_panels(
                rows, own->scores[0] + at, TILE, values, width, PANEL, tokens, width / PANEL, own->sums, width);
        }
    }
    for (long row = 0; row < rows; row++) {
        const long token = tile->token + (tile->first + row) / shared;
        const long to = (token * heads + head * shared + (tile->first + row) % shared) * dim;
        for (long d = 0; d < dim; d += LANES)
            store_first(format, out, to + d, load(FP32, own->sums, row * width + d) / own->total[row], dim - d);
    }
}

/* `queries` [tokens, heads, dim] with `query_stride` elements between tokens; `out` [tokens, heads, dim], contiguous;
   `window` 0: none. The most expensive tiles should come first. */
EXPORT void baton_attend(
    const struct attention *step, const void *queries, long query_stride, const void *pool, long window, void *out)
{
#pragma omp parallel
    {
        struct scratch own;
#pragma omp for collapse(2) schedule(dynamic)
        for (long tile = 0; tile < step->tile_count; tile++)
            for (long head = 0; head < step->kv_heads; head++)
                attend_tile(step, step->tiles + tile, head, queries, query_stride, pool, window, out, &own);
    }
}

/* `keys_values` [tokens, 2 x kv_heads, dim], keys before values, `stride` elements between tokens, go to `slots`
   (block x block size + offset). Blocks that a sequence enters are cleared first: a block leaves this worker whole, and
   must not take along what its last owner left. */
EXPORT void baton_store(
    const struct attention *step, const char *keys_values, long stride, const int64_t *slots, long tokens,
    const int64_t *fresh, long fresh_count, char *pool)
{
    const long block = step->block, heads = step->kv_heads;
    const long token_bytes = step->dim * (step->format == FP32 ? 4 : 2), side = block * token_bytes;
    for (long i = 0; i < fresh_count; i++)
        memset(pool + fresh[i] * heads * 2 * side, 0, heads * 2 * side);
    for (long token = 0; token < tokens; token++) {
        const char *from = keys_values + token * stride * (token_bytes / step->dim);
        for (long part = 0; part < 2 * heads; part++) {
            const long head = part % heads, values = part / heads;
            char *to = pool + ((slots[token] / block * heads + head) * 2 + values) * side + slots[token] % block * token_bytes;
            memcpy(to, from + part * token_bytes, token_bytes);
        }
    }
}
