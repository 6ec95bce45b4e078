/* y = x W^T + b for x [rows, inputs] in fp32, or in bf16 with fp32 sums. W is of the format of x, or int8 with a scale
   for each output, which multiplies the sum.

   W is packed once into panels (panel_product.h). Every number of rows runs through the same panels in the same order of
   the depth. Of several products at once, such as a layer's experts, threads share all panels evenly. */

#include <omp.h>

#include "prepared.h"

#define ROW_TIME 16 /* bytes read from memory while a row is multiplied by one input of a panel */

INLINE long panels_of(const struct linear *layer) { return rounded_up(layer->outputs, PANEL) / PANEL; }

EXPORT long baton_packed_bytes(const struct linear *layer) { return panels_of(layer) * panel_bytes(layer); }

static void pack_panel(const struct linear *layer, const char *weight, long first, char *to)
{
    const long size = weight_bytes(layer->weights), group = 4 / size, depth = packed_depth(layer);
    for (long k = 0; k < depth; k += group)
        for (long output = first; output < first + PANEL; output++, to += 4) {
            const long there = output < layer->outputs ? most(0, least(group, layer->inputs - k)) : 0;
            memset(to, 0, 4);
            memcpy(to, weight + (output * layer->inputs + k) * size, there * size);
        }
}

EXPORT void baton_pack(
    const struct linear *layer, const char *weight, const float *scales, const float *offsets, char *packed)
{
#pragma omp parallel for schedule(static)
    for (long panel = 0; panel < panels_of(layer); panel++) {
        char *to = packed + panel * panel_bytes(layer);
        if (is_quantized(layer))
            pack_quantized(layer, weight, scales, offsets, panel * PANEL, to);
        else
            pack_panel(layer, weight, panel * PANEL, to);
    }
}

/* Whether rows are converted to fp32 strips first. */
INLINE int is_widened(const struct linear *layer)
{
#if defined HAS_WIDE_PRODUCT && defined HAS_FP8_PRODUCT
    return layer->format == BF16 && (layer->weights == BF16 || takes_fp8(layer));
#elif defined HAS_WIDE_PRODUCT
    return layer->format == BF16 && layer->weights == BF16;
#else
    (void)layer;
    return 0;
#endif
}

/* Rows that a panel is multiplied by at a time. */
INLINE long block_rows_of(const struct product *product)
{
    if (is_widened(product->layer)) {
        const long fitting = WIDE_BYTES / (product->layer->inputs * 4) / TILE_ROWS * TILE_ROWS;
        const long most_rows = least(LEAST_ROWS, most(TILE_ROWS, fitting));
        const long blocks = (product->rows + most_rows - 1) / most_rows;
        return rounded_up(product->rows, blocks * TILE_ROWS) / blocks;
    }
    const long size = product->layer->format == FP32 ? 4 : 2, rows = product->rows;
    const long fitting = X_BYTES / (product->layer->inputs * size) / LEAST_ROWS * LEAST_ROWS;
    const long most_rows = least(ROW_BLOCK, most(LEAST_ROWS, fitting));
    const long blocks = rounded_up(rows, most_rows) / most_rows;
    return least(most_rows, rounded_up(rounded_up(rows, blocks) / blocks, 32));
}

/* Floats of a thread's strips. */
static long strip_floats(const struct product *products, long count)
{
    long floats = 1;
    for (const struct product *product = products; product < products + count; product++)
        if (product->rows && is_widened(product->layer))
            floats = most(floats, wide_room(least(product->rows, block_rows_of(product)), product->layer->inputs));
    return floats;
}

/* Cost of a block of rows times a panel, in bytes that could be read meanwhile; at least the panel's bytes. */
INLINE long cost_of(const struct linear *layer, long rows)
{
    return most(rows * layer->inputs * ROW_TIME, panel_bytes(layer));
}

static long total_cost(const struct product *products, long count)
{
    long cost = 0;
    for (const struct product *product = products; product < products + count; product++)
        for (long first = 0, rows = product->rows ? block_rows_of(product) : 0; first < product->rows; first += rows)
            cost += panels_of(product->layer) * cost_of(product->layer, least(rows, product->rows - first));
    return cost;
}

/* Multiplies a thread's share: the parts at costs begin … end - 1. Without scratch, returns only its first panel, or null. */
static const char *multiply_share(
    const struct product *products, long count, long begin, long end, const char *after, struct scratch *own)
{
    struct part part = {0};
    long before = 0;
    for (const struct product *product = products; product < products + count; product++) {
        const struct linear *layer = product->layer;
        const long rows = product->rows ? block_rows_of(product) : 0, panels = panels_of(layer);
        const long y_stride = product->y_stride ? product->y_stride : layer->outputs;
        for (long first = 0; first < product->rows; first += rows) {
            const long last = least(product->rows, first + rows), cost = cost_of(layer, last - first);
            const long from = rounded_up(most(0, begin - before), cost) / cost;
            const long to = least(panels, rounded_up(most(0, end - before), cost) / cost);
            for (long i = from; i < to; i++) {
                const char *panel = (const char *)layer->packed + i * panel_bytes(layer);
                if (!own)
                    return panel;
                if (part.layer)
                    multiply_part(&part, panel, own);
                part = (struct part){
                    layer, product->x, product->x_stride, first, last, i * PANEL, panel, product->y, y_stride};
            }
            before += panels * cost;
        }
    }
    if (part.layer)
        multiply_part(&part, after, own);
    return 0;
}

void baton_products(const struct product *given, long given_count, const struct product *next, long next_count)
{
    struct prepared own = list_products(given, given_count);
    const long total = total_cost(own.products, own.count);
    struct product after[count_parts(next, next_count) + 1];
    const long after_count = add_parts(next, next_count, after), after_total = total_cost(after, after_count);
    const long floats = strip_floats(own.products, own.count);
    const int little = own.bytes && is_little(&own);
    if (total) {
#pragma omp parallel
        {
            const long thread = omp_get_thread_num(), threads = omp_get_num_threads();
            struct scratch scratch;
            float strips[floats] __attribute__((aligned(64)));
            char room[little ? own.bytes : 1] __attribute__((aligned(64)));
            struct product alone[little ? own.count : 1];
            const struct product *products = little ? alone : own.products;
            if (little)
                prepare_alone(&own, room, alone);
            else
                prepare_share(&own, thread, threads);
            const char *then = multiply_share(after, after_count, after_total * thread / threads, after_total, 0, 0);
            if (own.preparation_count && !little) {
#pragma omp barrier
            }
            begin_parts(&scratch, strips);
            multiply_share(
                products, own.count, total * thread / threads, total * (thread + 1) / threads, then, &scratch);
            end_parts(&scratch);
        }
    }
    free_prepared(&own);
}

EXPORT void baton_linear(const struct linear *layer, const char *x, long x_stride, long rows, char *y)
{
    const struct product product = {layer, x, x_stride, rows, y}, next = {.layer = layer->then, .rows = rows};
    baton_products(&product, 1, &next, layer->then != 0);
}
