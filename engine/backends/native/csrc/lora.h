/* What adapters add to a linear layer. The same bytes are structures of ctypes. */

#ifndef LORA_H
#define LORA_H

#include "linear.h"

/* Rows grouped by adapter: rows order[starts[g]] … order[starts[g + 1] - 1] have the adapter in slot slots[g]. */
struct adapted_rows {
    int64_t groups;
    const int64_t *slots, *starts, *order;
};

/* A part's B: `columns` are its `outputs`, rounded up to whole vectors with zeros. */
struct expansion {
    int64_t first, outputs; /* of the layer */
    int64_t rank_first, rank; /* of the shrunk numbers; even in bf16 */
    int64_t columns;
    const char *b; /* fp32 [rank][columns], or bf16 [rank / 2][columns][2] */
};

/* What the adapter in one slot adds to one layer. */
struct change {
    int64_t columns; /* of a: all ranks, rounded up to whole vectors with zeros */
    const char *a;   /* fp32 [inputs][columns], or bf16 [inputs / 2, rounded up][columns][2] */
    int64_t parts;
    const struct expansion *expansions;
};

/* The adapters of a step's rows. */
struct adapters {
    struct adapted_rows every, kept; /* of all tokens, and of those that go on from the last layer */
    int64_t columns;                 /* no `columns` of a change is larger */
    char *shrunk;                    /* room for [rows that have an adapter, columns] */
};

/* y += x a b for `rows` with an adapter; rows of x are `x_stride` elements apart, y is [rows, outputs]. */
EXPORT void baton_adapt(
    const struct linear *layer, const struct adapters *adapters, const struct adapted_rows *rows, const char *x,
    long x_stride, char *y);

#endif
