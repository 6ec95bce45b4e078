/* Prepares products: layers of several parts become one product for each, and x is quantized or reordered as its layers
   need it, once for all that share it. */

#ifndef PREPARED_H
#define PREPARED_H

#include <stdlib.h>

#include "panel_product.h"

#define LITTLE_BYTES 8192 /* of prepared rows that each thread prepares for itself, since a barrier takes longer */
#define STRETCH 512       /* inputs of a row that a thread prepares at once */

/* Rows of x in the form that `layer` takes: in int8, or with their columns in its order. */
struct preparation {
    const struct linear *layer;
    const char *x;
    long x_stride, rows;
    char *to;        /* [rows] of `row_bytes` each */
    long row_bytes;
};

/* Products of layers without parts. */
struct prepared {
    struct product *products;
    long count;
    struct preparation *preparations;
    long preparation_count, bytes; /* of all that is prepared */
    char *room;
};

INLINE long parts_of(const struct linear *layer) { return layer->part_count ? layer->part_count : 1; }

static long count_parts(const struct product *products, long count)
{
    long parts = 0;
    for (long i = 0; i < count; i++)
        parts += parts_of(products[i].layer);
    return parts;
}

static long add_parts(const struct product *given, long count, struct product *to)
{
    struct product *const begin = to;
    for (const struct product *product = given; product < given + count; product++) {
        const struct linear *whole = product->layer, *parts = whole->part_count ? whole->parts : whole;
        const long size = whole->format == FP32 ? 4 : 2;
        char *y = product->y;
        for (const struct linear *part = parts; part < parts + parts_of(whole); part++, to++) {
            *to = *product;
            to->layer = part;
            to->y = y;
            to->y_stride = product->y_stride ? product->y_stride : whole->outputs;
            y += part->outputs * size;
        }
    }
    return to - begin;
}

INLINE int is_prepared(const struct linear *layer) { return takes_int8(layer) || layer->order; }
INLINE int take_the_same(const struct linear *a, const struct linear *b)
{
    const int both = takes_int8(a) && takes_int8(b) && unit_of(a) == unit_of(b) && planes_of(a) == planes_of(b);
    return a->order == b->order && a->inputs == b->inputs && (both || (!takes_int8(a) && !takes_int8(b)));
}
INLINE long prepared_row_bytes(const struct linear *layer)
{
#if defined HAS_INT8_PRODUCT
    if (takes_int8(layer))
        return quantized_row_bytes(layer);
#endif
    return layer->inputs * (layer->format == FP32 ? 4 : 2);
}

/* Finds the preparation of a product's x, or adds it. */
static long preparation_of(struct prepared *own, const struct product *product)
{
    const struct linear *layer = product->layer;
    struct preparation *const begin = own->preparations, *end = begin + own->preparation_count;
    for (struct preparation *found = end; found-- > begin && found->x == product->x;)
        if (found->x_stride == product->x_stride && found->rows == product->rows && take_the_same(found->layer, layer))
            return found - begin;
    const long row_bytes = prepared_row_bytes(layer);
    *end = (struct preparation){layer, product->x, product->x_stride, product->rows, 0, row_bytes};
    own->bytes += rounded_up(product->rows * row_bytes, 64);
    return own->preparation_count++;
}

/* Lists what there is to compute and to prepare. All of it is freed by `free_prepared`. */
static struct prepared list_products(const struct product *given, long count)
{
    const long parts = count_parts(given, count);
    struct prepared own = {0};
    own.products = malloc(parts * (sizeof *own.products + sizeof *own.preparations + sizeof(long)) + 1);
    if (!own.products)
        abort();
    own.preparations = (struct preparation *)(own.products + parts);
    own.count = add_parts(given, count, own.products);
    long *which = (long *)(own.preparations + parts);
    for (long i = 0; i < parts; i++)
        if (is_prepared(own.products[i].layer))
            which[i] = preparation_of(&own, own.products + i);
    if (!own.bytes)
        return own;
    char *to = own.room = aligned_alloc(64, own.bytes);
    if (!to)
        abort();
    for (struct preparation *each = own.preparations; each < own.preparations + own.preparation_count; each++) {
        each->to = to;
        to += rounded_up(each->rows * each->row_bytes, 64);
    }
    for (long i = 0; i < parts; i++) {
        struct product *product = own.products + i;
        if (is_prepared(product->layer)) {
            const struct preparation *found = own.preparations + which[i];
            product->x = found->to;
            product->x_stride = takes_int8(product->layer) ? found->row_bytes : product->layer->inputs;
        }
    }
    return own;
}

static void free_prepared(struct prepared *own)
{
    free(own->room);
    free(own->products);
}

/* Prepares a row's inputs from `begin` to `end`, both whole units or the row's end. */
static void prepare_row(const struct preparation *own, long row, long begin, long end, char *to)
{
    const struct linear *layer = own->layer;
    const long size = layer->format == FP32 ? 4 : 2;
    const char *x = own->x + row * own->x_stride * size;
    to += row * own->row_bytes;
#if defined HAS_INT8_PRODUCT
    if (takes_int8(layer)) {
        quantize_row(layer, x, begin, least(end, whole_units(layer)), to);
        return;
    }
#endif
    for (long i = begin; i < least(end, layer->inputs); i++)
        memcpy(to + i * size, x + layer->order[i] * size, size);
}

/* Prepares the share of a thread: stretches of rows, since one row should not wait for one thread. */
static void prepare_share(const struct prepared *own, long thread, long threads)
{
    for (long i = 0; i < own->preparation_count; i++) {
        const struct preparation *each = own->preparations + i;
        const long stretches = rounded_up(each->layer->inputs, STRETCH) / STRETCH, all = each->rows * stretches;
        for (long at = all * thread / threads; at < all * (thread + 1) / threads; at++) {
            const long begin = at % stretches * STRETCH;
            prepare_row(each, at / stretches, begin, begin + STRETCH, each->to);
        }
    }
}

INLINE int is_little(const struct prepared *own) { return own->bytes <= LITTLE_BYTES; }

/* Prepares all in a thread's own `room` of as many bytes, and makes `products` that have x from there. */
static void prepare_alone(const struct prepared *own, char *room, struct product *products)
{
    for (long i = 0; i < own->preparation_count; i++) {
        const struct preparation *each = own->preparations + i;
        for (long row = 0; row < each->rows; row++)
            prepare_row(each, row, 0, each->row_bytes, room + (each->to - own->room));
    }
    for (long i = 0; i < own->count; i++) {
        products[i] = own->products[i];
        if (products[i].rows && is_prepared(products[i].layer))
            products[i].x = room + (products[i].x - own->room);
    }
}

#endif
