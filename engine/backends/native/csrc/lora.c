/* LoRA: low-rank changes of a linear layer's outputs, for rows of several adapters at once.

   Rows of one adapter are a group. Each group's rows are first multiplied by A (shrunk), then each part of the layer's
   outputs by its B (expanded), in place. Threads share the tiles of all groups evenly. fp32 sums run in the order of the
   depth, so a row's bits depend on that row only. */

#include <omp.h>

#include "lora.h"
#include "product.h"

#define WIDE 4          /* vectors of columns of a tile */
#define ROWS_TOGETHER 48 /* of a tile of outputs, one after the other */

/* A step of the depth of a row, in all lanes: an fp32, or two bf16, of which the second is 0 where there is but one. */
INLINE uvec step_of(enum format format, const char *row, long k, const int single)
{
    uint32_t word = 0;
    memcpy(&word, row + k * (format == FP32 ? 4 : 2), single && format == BF16 ? 2 : 4);
    return word - (uvec){0};
}

INLINE vec add_pair(uvec x, uvec b, vec sum)
{
#if defined HAS_PAIRS
    return add_pairs(sum, x, b);
#else
    const uvec high = (uvec){0} + 0xffff0000u;
    return fused((vec)(x & high), (vec)(b & high), fused((vec)(x << 16), (vec)(b << 16), sum));
#endif
}

INLINE void add_step(
    enum format format, const int rows, const int vectors, const char *const *x, long k, const int single,
    const char *b, vec sum[TILE_ROWS][WIDE])
{
    uvec column[WIDE];
    memcpy(column, b, vectors * sizeof *column);
#pragma GCC unroll 6
    for (int row = 0; row < rows; row++) {
        const uvec own = step_of(format, x[row], k, single);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sum[row][v] = format == FP32 ? fused((vec)own, (vec)column[v], sum[row][v])
                                         : add_pair(own, column[v], sum[row][v]);
    }
}

/* sum[row][v] = rows of x times `vectors` vectors of the columns of b, `columns` in all. */
INLINE void multiply(
    enum format format, const int rows, const int vectors, const char *const *x, long depth, const char *b,
    long columns, vec sum[TILE_ROWS][WIDE])
{
#pragma GCC unroll 6
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sum[row][v] = (vec){0};
    const long step = format == FP32 ? 1 : 2;
    long k = 0;
    for (; k + step <= depth; k += step, b += columns * 4)
        add_step(format, rows, vectors, x, k, 0, b, sum);
    if (k < depth)
        add_step(format, rows, vectors, x, k, 1, b, sum);
}

INLINE void tile_of_vectors(
    enum format format, long rows, const int vectors, const char *const *x, long depth, const char *b, long columns,
    vec sum[TILE_ROWS][WIDE])
{
#define ROWS(COUNT) multiply(format, COUNT, vectors, x, depth, b, columns, sum)
    FOR_ROWS(rows, ROWS)
#undef ROWS
}

/* A tile of up to TILE_ROWS rows and WIDE vectors. */
static void multiply_tile(
    enum format format, long rows, long vectors, const char *const *x, long depth, const char *b, long columns,
    vec sum[TILE_ROWS][WIDE])
{
#define TILE(VECTORS) BY_FORMAT(format, tile_of_vectors, rows, VECTORS, x, depth, b, columns, sum)
    switch (vectors) {
    case 1: TILE(1); break;
    case 2: TILE(2); break;
    case 3: TILE(3); break;
    default: TILE(4);
    }
#undef TILE
}

/* A step's rows and one layer. */
struct task {
    const struct linear *layer;
    const struct adapted_rows *rows;
    const char *x;
    long x_bytes, size; /* between rows; of an element */
    long columns;       /* between rows of `shrunk` */
    char *shrunk, *y;
};

INLINE const struct change *change_of(const struct task *task, long group)
{
    return task->layer->changes[task->rows->slots[group]];
}

/* Of a group the vectors of columns from `vector` on, for rows `first` … of it: shrunk, and stored at their places. */
static void shrink(const struct task *task, long group, long first, long count, long vector)
{
    const struct change *change = change_of(task, group);
    const long begin = task->rows->starts[group] + first, vectors = least(WIDE, change->columns / LANES - vector);
    const char *x[TILE_ROWS];
    vec sum[TILE_ROWS][WIDE];
    for (long row = 0; row < count; row++)
        x[row] = task->x + task->rows->order[begin + row] * task->x_bytes;
    multiply_tile(
        task->layer->format, count, vectors, x, task->layer->inputs, change->a + vector * LANES * 4, change->columns, sum);
    for (long row = 0; row < count; row++)
        for (long v = 0; v < vectors; v++)
            store(
                task->layer->format, task->shrunk, (begin + row) * task->columns + (vector + v) * LANES, sum[row][v]);
}

/* y += of a part's vectors from `vector` on, for rows `first` … of a group. */
static void expand(
    const struct task *task, long group, const struct expansion *part, long first, long count, long vector)
{
    const struct linear *layer = task->layer;
    const long begin = task->rows->starts[group] + first, vectors = least(WIDE, part->columns / LANES - vector);
    const char *x[TILE_ROWS];
    vec sum[TILE_ROWS][WIDE];
    for (long row = 0; row < count; row++)
        x[row] = task->shrunk + ((begin + row) * task->columns + part->rank_first) * task->size;
    multiply_tile(layer->format, count, vectors, x, part->rank, part->b + vector * LANES * 4, part->columns, sum);
    for (long row = 0; row < count; row++) {
        char *y = task->y + task->rows->order[begin + row] * layer->outputs * task->size;
        for (long v = 0; v < vectors; v++) {
            const long column = (vector + v) * LANES, left = part->outputs - column, at = part->first + column;
            if (left > 0) /* a matrix has columns of zeros, up to the longest vectors there are */
                store_first(layer->format, y, at, load_first(layer->format, y, at, left) + sum[row][v], left);
        }
    }
}

/* Computes a thread's share of the tiles of all groups; with `thread` -1 only counts them. */
static long shrink_share(const struct task *task, long thread, long threads, long total)
{
    long tile = 0;
    for (long group = 0; group < task->rows->groups; group++) {
        const struct change *change = change_of(task, group);
        const long rows = task->rows->starts[group + 1] - task->rows->starts[group];
        for (long vector = 0; change && vector < change->columns / LANES; vector += WIDE)
            for (long first = 0; first < rows; first += TILE_ROWS, tile++)
                if (thread >= 0 && tile >= total * thread / threads && tile < total * (thread + 1) / threads)
                    shrink(task, group, first, least(TILE_ROWS, rows - first), vector);
    }
    return tile;
}

static long expand_share(const struct task *task, long thread, long threads, long total)
{
    long tile = 0;
    for (long group = 0; group < task->rows->groups; group++) {
        const struct change *change = change_of(task, group);
        const long rows = task->rows->starts[group + 1] - task->rows->starts[group];
        for (long i = 0; change && i < change->parts; i++)
            for (long together = 0; together < rows; together += ROWS_TOGETHER)
                for (long vector = 0; vector < change->expansions[i].columns / LANES; vector += WIDE, tile++) {
                    if (thread < 0 || tile < total * thread / threads || tile >= total * (thread + 1) / threads)
                        continue;
                    const long end = least(rows, together + ROWS_TOGETHER);
                    for (long first = together; first < end; first += TILE_ROWS)
                        expand(task, group, change->expansions + i, first, least(TILE_ROWS, end - first), vector);
                }
    }
    return tile;
}

EXPORT void baton_adapt(
    const struct linear *layer, const struct adapters *adapters, const struct adapted_rows *rows, const char *x,
    long x_stride, char *y)
{
    const long size = layer->format == FP32 ? 4 : 2;
    const struct task task = {layer, rows, x, x_stride * size, size, adapters->columns, adapters->shrunk, y};
    const long shrinking = shrink_share(&task, -1, 1, 0), expanding = expand_share(&task, -1, 1, 0);
    if (!shrinking)
        return;
#pragma omp parallel
    {
        const long thread = omp_get_thread_num(), threads = omp_get_num_threads();
        shrink_share(&task, thread, threads, shrinking);
#pragma omp barrier
        expand_share(&task, thread, threads, expanding);
    }
}
