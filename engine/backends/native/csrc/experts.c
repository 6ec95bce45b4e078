/* A mixture of experts: tokens are sorted by expert, and all experts' products are computed together.

   The weights of each used expert are read once in a step, or once for each block of many rows; threads share all panels
   of all experts evenly. A row's experts are added up in splits of neighbouring experts, within a split in the order in
   which they were chosen, so its bits depend on that row only, and not on how many ranks the experts are divided among. */

#include "elementwise.h"
#include "experts.h"

#define WORTH_THREADS 65536 /* multiplications; fewer take less time than waking a thread */
#define DOT_ROWS 4

/* found[t][e] = x[t] weight[e] for up to DOT_ROWS rows of each, as a sum of LANES partial sums. */
INLINE void dots(
    enum format format, const int tokens, const int rows, const char *x, const float *weight, long hidden,
    float *found, long stride)
{
    const long size = format == FP32 ? 4 : 2;
    vec sum[DOT_ROWS][DOT_ROWS] = {{{0}}};
    for (long i = 0; i < hidden; i += LANES) {
        vec part[DOT_ROWS];
#pragma GCC unroll 4
        for (int e = 0; e < rows; e++)
            part[e] = load_first(FP32, weight + e * hidden, i, hidden - i);
#pragma GCC unroll 4
        for (int t = 0; t < tokens; t++) {
            const vec own = load_first(format, x + t * hidden * size, i, hidden - i);
#pragma GCC unroll 4
            for (int e = 0; e < rows; e++)
                sum[t][e] = fused(own, part[e], sum[t][e]);
        }
    }
    for (int t = 0; t < tokens; t++)
        for (int e = 0; e < rows; e++)
            found[t * stride + e] = sum_of(sum[t][e]);
}

/* found [tokens, count] = x weight^T; `weight` is [count, hidden]. */
INLINE void small_product(
    enum format format, const char *x, long tokens, const float *weight, long count, long hidden, float *found)
{
    const long row_blocks = (count + DOT_ROWS - 1) / DOT_ROWS, blocks = (tokens + DOT_ROWS - 1) / DOT_ROWS * row_blocks;
    const long token_bytes = hidden * (format == FP32 ? 4 : 2);
#pragma omp parallel for schedule(static) if (tokens * count * hidden >= WORTH_THREADS)
    for (long block = 0; block < blocks; block++) {
        const long token = block / row_blocks * DOT_ROWS, row = block % row_blocks * DOT_ROWS;
        const char *own_x = x + token * token_bytes;
        const float *own_weight = weight + row * hidden;
        float *own = found + token * count + row;
        if (token + DOT_ROWS <= tokens && row + DOT_ROWS <= count)
            dots(format, DOT_ROWS, DOT_ROWS, own_x, own_weight, hidden, own, count);
        else
            for (long t = 0; t < least(DOT_ROWS, tokens - token); t++) {
                if (row + DOT_ROWS <= count)
                    dots(format, 1, DOT_ROWS, own_x + t * token_bytes, own_weight, hidden, own + t * count, count);
                else
                    for (long e = 0; e < count - row; e++)
                        dots(
                            format, 1, 1, own_x + t * token_bytes, own_weight + e * hidden, hidden,
                            own + t * count + e, count);
            }
    }
}

static void small(const struct experts *experts, const char *x, long tokens, const float *weight, long count, float *found)
{
    BY_FORMAT(experts->format, small_product, x, tokens, weight, count, experts->hidden, found);
}

/* The number of a chosen expert among those of this rank; their count, if another rank has it. */
static long own_number(const struct experts *experts, long chosen)
{
    const long number = chosen - experts->first;
    return number < 0 || number > experts->own ? experts->own : number;
}

/* Copies each (token, expert) pair's row to its slot; own expert e has slots begin[e] … begin[e + 1] - 1. */
static void sort(
    const struct experts *experts, const struct experts_buffers *buffers, const char *x, long tokens, long *begin)
{
    const long count = experts->own, used = experts->router.used, pairs = tokens * used;
    const long bytes = experts->hidden * (experts->format == FP32 ? 4 : 2);
    long next[MAX_EXPERTS + 1]; /* the last pairs are other ranks' */
    memset(begin, 0, (count + 2) * sizeof *begin);
    for (long pair = 0; pair < pairs; pair++)
        begin[own_number(experts, buffers->chosen[pair]) + 1]++;
    for (long expert = 0; expert <= count; expert++) {
        begin[expert + 1] += begin[expert];
        next[expert] = begin[expert];
    }
    for (long pair = 0; pair < pairs; pair++)
        buffers->slots[pair] = next[own_number(experts, buffers->chosen[pair])]++;
#pragma omp parallel for schedule(static) if (pairs * bytes >= 1 << 16)
    for (long pair = 0; pair < pairs; pair++)
        if (buffers->slots[pair] < begin[count])
            memcpy(buffers->x + buffers->slots[pair] * bytes, x + pair / used * bytes, bytes);
}

/* The shared expert's y for a token, weighed, plus `total`. */
INLINE vec with_shared(
    const struct experts *experts, const struct experts_buffers *buffers, long token, const vec y, const vec total)
{
    return fused(all(experts->shared_gate ? buffers->shared_shares[token] : 1), y, total);
}

/* sum [tokens, hidden] = the token's experts in the first `slots`, weighed, plus the shared expert; fp32 without the
   latter if other ranks have experts, too. */
INLINE void add_up(
    enum format format, const struct experts *experts, const struct experts_buffers *buffers, long tokens, long slots,
    void *sum)
{
    const long hidden = experts->hidden, used = experts->router.used, width = 512, parts = (hidden + width - 1) / width;
#pragma omp parallel for schedule(static) collapse(2) if (tokens * used * hidden >= WORTH_THREADS)
    for (long token = 0; token < tokens; token++)
        for (long part = 0; part < parts; part++)
            for (long i = part * width; i < least(hidden, (part + 1) * width); i += LANES) {
                const long left = hidden - i;
                vec split[EXPERT_SPLITS] = {{0}};
                for (long pair = token * used; pair < (token + 1) * used; pair++) {
                    if (buffers->slots[pair] >= slots)
                        continue;
                    const vec y = load_first(format, buffers->y, buffers->slots[pair] * hidden + i, left);
                    vec *own = split + ((buffers->chosen[pair] + 1) * EXPERT_SPLITS - 1) / experts->router.experts;
                    *own = fused(all(buffers->shares[pair]), y, *own);
                }
                vec total = (split[0] + split[1]) + (split[2] + split[3]);
                if (experts->partial) {
                    store_first(FP32, sum, token * hidden + i, total, left);
                    continue;
                }
                if (experts->shared_down)
                    total = with_shared(
                        experts, buffers, token, load_first(format, buffers->shared_y, token * hidden + i, left), total);
                store_first(format, sum, token * hidden + i, total, left);
            }
}

INLINE void add_shared(
    enum format format, const struct experts *experts, const struct experts_buffers *buffers, const void *shared,
    const float *sum, long tokens, void *change)
{
    const long hidden = experts->hidden;
#pragma omp parallel for schedule(static) if (tokens * hidden >= WORTH_THREADS)
    for (long token = 0; token < tokens; token++)
        for (long i = 0; i < hidden; i += LANES) {
            const long left = hidden - i, at = token * hidden + i;
            const vec y = load_first(format, shared, at, left);
            store_first(
                format, change, at, with_shared(experts, buffers, token, y, load_first(FP32, sum, at, left)), left);
        }
}

EXPORT void baton_add_shared(
    const struct experts *experts, const struct experts_buffers *buffers, const char *shared, const float *sum, long tokens,
    char *change)
{
    BY_FORMAT(experts->format, add_shared, experts, buffers, shared, sum, tokens, change);
}

EXPORT void baton_mix(
    const struct experts *experts, const struct experts_buffers *buffers, const char *x, long tokens, char *change)
{
    const long format = experts->format, size = format == FP32 ? 4 : 2, hidden = experts->hidden;
    const long width = experts->down->inputs;
    char *shared_y = experts->partial ? change + tokens * hidden * sizeof(float) : buffers->shared_y;
    long begin[MAX_EXPERTS + 2], count = 0;
    struct product up[MAX_EXPERTS + 1], down[MAX_EXPERTS + 1];
    sort(experts, buffers, x, tokens, begin);
    const long pairs = begin[experts->own];
    for (long expert = 0; expert < experts->own; expert++) {
        const long slot = begin[expert], rows = begin[expert + 1] - slot;
        if (!rows)
            continue;
        up[count] = (struct product){
            experts->gate_up + expert, buffers->x + slot * hidden * size, hidden, rows,
            buffers->gate_up + slot * 2 * width * size};
        down[count++] = (struct product){
            experts->down + expert, buffers->gated + slot * width * size, width, rows,
            buffers->y + slot * hidden * size};
    }
    if (experts->shared_down) {
        const long inputs = experts->shared_down->inputs;
        up[count] = (struct product){experts->shared_gate_up, x, hidden, tokens, buffers->shared_gate_up};
        down[count++] = (struct product){experts->shared_down, buffers->shared_gated, inputs, tokens, shared_y};
    }
    baton_products(up, count, down, count);
    baton_gate(format, experts->activation, buffers->gate_up, pairs, width, buffers->gated);
    if (experts->shared_down)
        baton_gate(
            format, experts->activation, buffers->shared_gate_up, tokens, experts->shared_down->inputs,
            buffers->shared_gated);
    const struct product next = {.layer = experts->then, .rows = tokens};
    baton_products(down, count, &next, experts->then != 0);
    if (experts->shared_gate) {
        small(experts, x, tokens, experts->shared_gate, 1, buffers->shared_shares);
        for (long token = 0; token < tokens; token++)
            buffers->shared_shares[token] = 1 / (1 + expf(-buffers->shared_shares[token]));
    }
    BY_FORMAT(format, add_up, experts, buffers, tokens, pairs, change);
}

EXPORT void baton_experts(
    const struct experts *experts, const struct experts_buffers *buffers, const char *x, long tokens, char *change)
{
    const long count = experts->router.experts;
    small(experts, x, tokens, experts->weight, count, buffers->logits);
    for (long token = 0; experts->bias && token < tokens; token++)
        for (long expert = 0; expert < count; expert++)
            buffers->logits[token * count + expert] += experts->bias[expert];
    baton_route(&experts->router, buffers->logits, tokens, buffers->chosen, buffers->shares);
    baton_mix(experts, buffers, x, tokens, change);
}
