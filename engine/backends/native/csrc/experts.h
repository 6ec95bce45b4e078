/* A mixture of experts. The same bytes are structures of ctypes. */

#ifndef EXPERTS_H
#define EXPERTS_H

#include "linear.h"

#define MAX_EXPERTS 1024
#define EXPERT_SPLITS 4 /* of the experts: each split's products are added up by themselves, then these sums in a tree */

enum scores { SOFTMAX, SOFTMAX_OF_USED, SIGMOID };

/* How experts are chosen and weighed; engine/model/config.py says what each means. */
struct router {
    int64_t experts, used, scores, normalized, groups, groups_used, best_two;
    double scale;
    const float *correction; /* [experts], or null */
};

struct experts {
    struct router router;
    int64_t format, hidden, activation;
    int64_t first, own, partial;          /* the router's experts that this rank has; whether other ranks have some */
    const float *weight, *bias;           /* of the router: [experts, hidden], and [experts] or null */
    const struct linear *gate_up, *down;  /* [own] */
    const struct linear *shared_gate_up, *shared_down; /* or null */
    const float *shared_gate;             /* [hidden], or null */
    const struct linear *then;            /* or null: what is multiplied next */
};

/* Buffers for a step's tokens. Slots are pairs of a token and an expert of its, sorted by expert, then by token. */
struct experts_buffers {
    float *logits;           /* [tokens, experts] */
    int32_t *chosen, *slots; /* [tokens, used] */
    float *shares;           /* [tokens, used] */
    float *shared_shares;    /* [tokens] */
    char *x, *y;             /* [tokens x used, hidden] */
    char *gate_up, *gated;   /* [tokens x used, 2 x intermediate], and half as wide */
    char *shared_gate_up, *shared_gated, *shared_y; /* [tokens, …] */
};

/* Chooses experts by `logits` [tokens, experts], which become scores; `chosen` and `shares` are [tokens, used]. */
EXPORT void baton_route(const struct router *router, float *logits, long tokens, int32_t *chosen, float *shares);

/* change = what the chosen experts in the buffers, and the shared one, give for x; both are [tokens, hidden], contiguous.
   If other ranks have some of the experts, `change` is fp32 instead, twice as long with a shared expert: this rank's
   parts of the experts' sum, and behind them its parts of the shared expert, which are to be added to other ranks'. */
EXPORT void baton_mix(
    const struct experts *experts, const struct experts_buffers *buffers, const char *x, long tokens, char *change);

/* Computes the router's logits, then both of the above. */
EXPORT void baton_experts(
    const struct experts *experts, const struct experts_buffers *buffers, const char *x, long tokens, char *change);

/* change = `sum` plus the shared expert's `shared`, weighed as by the last call of `baton_mix`; `sum` is fp32. */
EXPORT void baton_add_shared(
    const struct experts *experts, const struct experts_buffers *buffers, const char *shared, const float *sum, long tokens,
    char *change);

#endif
