/* A linear layer as linear.c multiplies it. The same bytes are a structure of ctypes. */

#ifndef LINEAR_H
#define LINEAR_H

#include "vector.h"

#define MOST_SPLITS 8

enum { INT8 = 2, INT4, FP8 }; /* of weights only, beside `enum format` */

/* A quantized weight is scale x (v - zero) + offset; v is int8, a 4-bit code or its table entry, or e4m3. */
struct linear {
    int64_t format;  /* of x, bias and y */
    int64_t weights; /* format of the packed weights */
    int64_t outputs, inputs;
    int64_t group;   /* inputs that share a scale, a multiple of 16; 0: an output has one, which is in `scales` */
    int64_t offsets; /* whether groups have offsets, or all are 0 */
    int64_t zero;
    const float *table;   /* [16], or null */
    const int64_t *order; /* [inputs], or null: which of x's columns each input is */
    int64_t splits;  /* equal stretches of the inputs that are summed apart: 1, 2, 4 or 8; more than 1 cut no group */
    int64_t partial; /* whether y is fp32: the sum of some ranks' inputs, which is added to others */
    const void *packed;
    const void *bias;    /* or null */
    const float *scales; /* [outputs], or null: sums are multiplied by them, before the bias */
    int64_t part_count;  /* of layers whose outputs lie side by side, which have the weights instead of this one; or 0 */
    const struct linear *parts;
    const struct linear *then; /* or null: what is multiplied next, asked for when this one's weights are read */
    const struct change *const *changes; /* or null: by slot, what an adapter adds, or null; see lora.h */
};

INLINE long split_depth(const struct linear *layer) { return layer->inputs / layer->splits; }

/* Packs a layer without parts into `packed`, of baton_packed_bytes. `weight` is [outputs, inputs], contiguous, in the
   weights' format, INT4 codes in bytes. `scales` and `offsets` of groups are [outputs, groups], or null. */
EXPORT void baton_pack(
    const struct linear *layer, const char *weight, const float *scales, const float *offsets, char *packed);
EXPORT long baton_packed_bytes(const struct linear *layer);

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

/* Computes all products together. The weights of `next`, of which only layers and rows are read, are prefetched. */
void baton_products(const struct product *products, long count, const struct product *next, long next_count);

#endif
