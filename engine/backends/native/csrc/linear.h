/* A linear layer as linear.c multiplies it. The same bytes are a structure of ctypes. */

#ifndef LINEAR_H
#define LINEAR_H

#include "vector.h"

enum { INT8 = 2 }; /* of weights only, beside `enum format` */

struct linear {
    int64_t format;  /* of x, bias and y */
    int64_t weights; /* format of the packed weights */
    int64_t outputs, inputs;
    const void *packed;
    const void *bias;    /* or null */
    const float *scales; /* of int8 weights */
    const struct linear *then; /* or null: what is multiplied next, asked for when this one's weights are read */
    const struct change *const *changes; /* or null: by slot, what an adapter adds, or null; see lora.h */
};

/* `x` has rows `x_stride` elements apart; `y` is [rows, outputs], contiguous. */
EXPORT void baton_linear(const struct linear *layer, const char *x, long x_stride, long rows, char *y);

/* Rows of x times a layer. `x` has rows `x_stride` elements apart, and `y` `y_stride`; 0: as many as there are outputs. */
struct product {
    const struct linear *layer;
    const char *x;
    long x_stride, rows;
    char *y;
    long y_stride;
};

/* Computes all products, side by side. Of the `next` ones only layers and rows are looked at: they are computed after
   these, so their weights are asked for in time. */
void baton_products(const struct product *products, long count, const struct product *next, long next_count);

#endif
