/* What becomes of sums: times the scale of the output's weights, plus its bias, in the format of y. */

#ifndef FINISH_H
#define FINISH_H

#include "linear.h"
#include "product.h"

/* Rows of complete sums that are yet to become rows of y. */
struct finish {
    const struct linear *layer;
    const float *sums; /* [rows, PANEL] */
    long output;       /* of the first column */
    long row, end;     /* of y */
    char *y;
    float unit; /* of the sums, where there are scales */
    long y_stride;
};

INLINE void finish_columns(
    enum format format, const int whole, const struct linear *layer, const float *sums, float unit, long output,
    void *y)
{
#pragma GCC unroll 4
    for (long column = 0; column < PANEL; column += LANES) {
        const long left = whole ? PANEL : layer->outputs - output - column;
        if (left <= 0)
            return;
        vec sum = load(FP32, sums, column);
        if (layer->scales)
            sum *= load_first(FP32, layer->scales, output + column, left) * unit;
        if (layer->bias)
            sum += load_first(format, layer->bias, output + column, left);
        store_first(format, y, output + column, sum, left);
    }
}

/* Finishes one row, if one is left. */
static void finish_row(struct finish *own)
{
    const struct linear *layer = own->layer;
    if (own->row == own->end)
        return;
    const int whole = own->output + PANEL <= layer->outputs;
    char *y = own->y + own->row++ * own->y_stride * (layer->format == FP32 ? 4 : 2);
    if (layer->format == FP32)
        finish_columns(FP32, 0, layer, own->sums, own->unit, own->output, y);
    else if (whole)
        finish_columns(BF16, 1, layer, own->sums, own->unit, own->output, y);
    else
        finish_columns(BF16, 0, layer, own->sums, own->unit, own->output, y);
    own->sums += PANEL;
}

INLINE void finish_all(struct finish *own)
{
    while (own->row < own->end)
        finish_row(own);
}

#endif
