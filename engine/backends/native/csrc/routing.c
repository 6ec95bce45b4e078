/* Which experts a token uses, and what weight each of them gets: in fp32, a token at a time.

   Of equal scores the lower number is first. Comparisons are written so that NaN is never better: the chosen differ
   whatever the logits are. */

#include "experts.h"

/* p = softmax(p), of `count` numbers. */
static void softmax(float *p, long count)
{
    vec largest = all(-INFINITY), sum = {0};
    for (long i = 0; i < count; i += LANES) {
        const vec x = load_first(FP32, p, i, count - i);
        largest = larger(i + LANES <= count ? x : chosen((ivec)LANE_NUMBERS < (int)(count - i), x, largest), largest);
    }
    const vec top = all(largest_of(largest));
    for (long i = 0; i < count; i += LANES) {
        const vec e = exponential(load_first(FP32, p, i, count - i) - top);
        store_first(FP32, p, i, e, count - i);
        sum += i + LANES <= count ? e : chosen((ivec)LANE_NUMBERS < (int)(count - i), e, (vec){0});
    }
    const float total = sum_of(sum);
    for (long i = 0; i < count; i++)
        p[i] /= total;
}

static void sigmoids(float *p, long count)
{
    for (long i = 0; i < count; i += LANES)
        store_first(FP32, p, i, times_sigmoid(FP32, all(1), load_first(FP32, p, i, count - i)), count - i);
}

/* The best of `count` scores that is not `out`, which it is from now on. */
static long take_best(const float *scores, uint8_t *out, long count)
{
    long best = -1;
    for (long i = 0; i < count; i++)
        if (!out[i] && (best < 0 || scores[i] > scores[best]))
            best = i;
    out[best] = 1;
    return best;
}

/* Marks the experts of all but the best groups as `out`. */
static void keep_best_groups(const struct router *router, const float *wanted, uint8_t *out)
{
    const long groups = router->groups, size = router->experts / groups;
    float worth[MAX_EXPERTS];
    uint8_t left[MAX_EXPERTS] = {0};
    for (long group = 0; group < groups; group++) {
        float first = -INFINITY, second = -INFINITY;
        for (const float *score = wanted + group * size; score < wanted + (group + 1) * size; score++)
            if (*score > first) {
                second = first;
                first = *score;
            } else if (*score > second) {
                second = *score;
            }
        worth[group] = router->best_two ? first + second : first;
    }
    memset(out, 1, router->experts);
    for (long i = 0; i < router->groups_used; i++)
        memset(out + take_best(worth, left, groups) * size, 0, size);
}

static void route(const struct router *router, float *scores, int32_t *chosen, float *shares)
{
    const long experts = router->experts, used = router->used;
    float corrected[MAX_EXPERTS], sum = 0;
    uint8_t out[MAX_EXPERTS] = {0};
    const float *wanted = scores;
    if (router->scores == SOFTMAX)
        softmax(scores, experts);
    else if (router->scores == SIGMOID)
        sigmoids(scores, experts);
    if (router->correction) {
        for (long i = 0; i < experts; i++)
            corrected[i] = scores[i] + router->correction[i];
        wanted = corrected;
    }
    if (router->groups > 1)
        keep_best_groups(router, wanted, out);
    for (long i = 0; i < used; i++) {
        chosen[i] = take_best(wanted, out, experts);
        shares[i] = scores[chosen[i]];
    }
    if (router->scores == SOFTMAX_OF_USED)
        softmax(shares, used);
    for (long i = 0; i < used; i++)
        sum += shares[i];
    for (long i = 0; i < used; i++)
        shares[i] = (router->normalized ? shares[i] / (sum + 1e-20f) : shares[i]) * (float)router->scale;
}

EXPORT void baton_route(const struct router *router, float *logits, long tokens, int32_t *chosen, float *shares)
{
    const long experts = router->experts, used = router->used;
#pragma omp parallel for schedule(static) if (tokens * experts >= 1024)
    for (long token = 0; token < tokens; token++)
        route(router, logits + token * experts, chosen + token * used, shares + token * used);
}
