/* What becomes of sums: times the scale of the output's weights, added up, plus its bias, in the format of y.

   The splits of a layer are added in one tree, ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7)): ranks that hold half of
   them, or a quarter, have the sum of a subtree, and adding the ranks' sums in the same tree gives the same bits. */

#ifndef FINISH_H
#define FINISH_H

#include "linear.h"
#include "product.h"

/* Rows of complete sums that are yet to become rows of y. */
struct finish {
    const struct linear *layer;
    const float *sums; /* [rows, PANEL] of each split … */
    long split;        /* … which are so many floats apart */
    long output;       /* of the first column */
    long row, end;     /* of y */
    char *y;
    float unit; /* of the sums, where there are scales */
    long y_stride;
};

INLINE vec one_split(const int scaled, const float *sums, vec scale)
{
    return scaled ? load(FP32, sums, 0) * scale : load(FP32, sums, 0);
}
INLINE vec two_splits(const int scaled, const float *sums, long split, vec scale)
{
    return one_split(scaled, sums, scale) + one_split(scaled, sums + split, scale);
}
INLINE vec four_splits(const int scaled, const float *sums, long split, vec scale)
{
    return two_splits(scaled, sums, split, scale) + two_splits(scaled, sums + 2 * split, split, scale);
}
INLINE vec add_splits(const int splits, const int scaled, const float *sums, long split, vec scale)
{
    switch (splits) {
    case 1: return one_split(scaled, sums, scale);
    case 2: return two_splits(scaled, sums, split, scale);
    case 4: return four_splits(scaled, sums, split, scale);
    default: return four_splits(scaled, sums, split, scale) + four_splits(scaled, sums + 4 * split, split, scale);
    }
}

INLINE void finish_columns(
    enum format format, const int whole, const int splits, const struct finish *own, void *y)
{
    const struct linear *layer = own->layer;
    const long output = own->output;
#pragma GCC unroll 4
    for (long column = 0; column < PANEL; column += LANES) {
        const long left = whole ? PANEL : layer->outputs - output - column;
        if (left <= 0)
            return;
        const float *sums = own->sums + column;
        vec sum;
        if (layer->scales)
            sum = add_splits(
                splits, 1, sums, own->split, load_first(FP32, layer->scales, output + column, left) * own->unit);
        else
            sum = add_splits(splits, 0, sums, own->split, all(1));
        if (layer->bias)
            sum += load_first(format, layer->bias, output + column, left);
        store_first(format, y, output + column, sum, left);
    }
}

INLINE void finish_splits(const int splits, const struct finish *own, long row)
{
    const int whole = own->output + PANEL <= own->layer->outputs;
    if (own->layer->format == FP32 || own->layer->partial)
        finish_columns(FP32, 0, splits, own, own->y + row * own->y_stride * 4);
    else if (whole)
        finish_columns(BF16, 1, splits, own, own->y + row * own->y_stride * 2);
    else
        finish_columns(BF16, 0, splits, own, own->y + row * own->y_stride * 2);
}

/* Finishes one row, if one is left. */
static void finish_row(struct finish *own)
{
    if (own->row == own->end)
        return;
    const long row = own->row++;
    switch (own->layer->splits) {
    case 1: finish_splits(1, own, row); break;
    case 2: finish_splits(2, own, row); break;
    case 4: finish_splits(4, own, row); break;
    default: finish_splits(MOST_SPLITS, own, row);
    }
    own->sums += PANEL;
}

INLINE void finish_all(struct finish *own)
{
    while (own->row < own->end)
        finish_row(own);
}

#endif
