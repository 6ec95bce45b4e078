/* The next tokens of logit rows: the largest, or one drawn by the Gumbel-max trick (see sampler.py and gumbel.py).

   A token depends on its row and its draw only. Rows are cut into segments, which threads take; the larger score wins,
   of equal ones the lower id, so who looked at what, and when, makes no difference. */

#include <omp.h>

#include "vector.h"

#define SEGMENT 8192       /* logits that a thread takes at a time */
#define WORTH_THREADS 32768
#define NOISE_RANGE 26.0f  /* more than the largest noise, 22.2, lies above the least, -2.8 */
#define LARGEST_NOISE 22.5f
#define FEW 24             /* scores that are sorted rather than halved */

struct draw { /* one sample; those of a row are neighbours */
    int64_t row;
    uint64_t seed, sample, output_index;
    int64_t top_k; /* 0: off */
    double temperature, top_p, reach; /* 0: the largest; 1: off; of min_p, from the largest score, -infinity: off */
};

static const ivec LANE = LANE_NUMBERS;

/* ln x of normal x > 0, to about one unit in the last place (Cephes' logf). */
INLINE vec logarithm(vec x)
{
    const ivec above = (ivec)x - 0x3f3504f3; /* of the square root of a half */
    const vec exponent = __builtin_convertvector(above >> 23, vec);
    const vec m = (vec)((above & 0x7fffff) + 0x3f3504f3) - 1.0f; /* from sqrt(1/2) - 1 to sqrt(2) - 1 */
    vec p = all(7.0376836292e-2f);
    p = fused(p, m, all(-1.1514610310e-1f));
    p = fused(p, m, all(1.1676998740e-1f));
    p = fused(p, m, all(-1.2420140846e-1f));
    p = fused(p, m, all(1.4249322787e-1f));
    p = fused(p, m, all(-1.6668057665e-1f));
    p = fused(p, m, all(2.0000714765e-1f));
    p = fused(p, m, all(-2.4999993993e-1f));
    p = fused(p, m, all(3.3333331174e-1f));
    p = fused(p * m, m * m, exponent * -2.12194440e-4f);
    p = fused(m * m, all(-0.5f), p);
    return fused(exponent, all(0.693359375f), m + p);
}

/* The finalizer of SplitMix64. */
INLINE uint64_t split_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Of the counters and the purpose: 0, a token. */
INLINE uint64_t key_of(const struct draw *draw)
{
    return split_mix(split_mix(split_mix(split_mix(draw->seed) ^ draw->sample) ^ draw->output_index));
}

/* v = 1 - u for uniform u: 31 bits of the key and the id. */
INLINE vec uniform(ivec ids, uint64_t key)
{
    uvec bits = (uvec)ids * 0x9e3779b9u + (uint32_t)key;
    bits = (bits ^ (bits >> 16)) * 0x21f0aaadu;
    bits = (bits ^ (bits >> 15)) + (uint32_t)(key >> 32);
    bits *= 0xd35a2d97u;
    bits = (bits ^ (bits >> 15)) & 0x7fffffff;
    const vec v = (__builtin_convertvector((ivec)bits, vec) + 0.5f) * 0x1p-31f;
    return chosen(v < 1 - 0x1p-24f, v, all(1 - 0x1p-24f));
}

/* -log(-log(1 - v)): the inner logarithm with what rounding 1 - v lost. */
INLINE vec gumbel(vec v)
{
    const vec u = 1.0f - v;
    return -logarithm(-(logarithm(u) + (-v - (u - 1.0f)) / u));
}

struct best {
    float score;
    int64_t id;
    int bad; /* some logit is not finite */
};

/* The best of each lane so far. */
struct lanes {
    vec score, least_score; /* the least that may still win */
    ivec id;
    vec zero; /* NaN once a logit was not finite */
};

/* Looks at LANES logits, or at those that are `there`. */
INLINE void look(const int random, struct lanes *best, vec logit, ivec ids, ivec there, vec temperature, uint64_t key)
{
    best->zero += logit - logit;
    vec score = logit;
    ivec better = there & (score > best->score);
    if (random) {
        score = logit / temperature;
        ivec possible = there & (score >= best->least_score);
        if (!any(possible))
            return;
        /* Noise is below -log v: to be better takes v < e^(score - best), but for rounding. */
        const vec v = uniform(ids, key), behind = score - best->score;
        possible &= v <= exponential(chosen(behind < 0.0f, behind, (vec){0})) * 1.001f;
        if (!any(possible))
            return;
        score += gumbel(v);
        better = possible & (score > best->score);
        best->least_score = larger(chosen(better, score, best->score) - LARGEST_NOISE, best->least_score);
    }
    best->score = chosen(better, score, best->score);
    best->id = (better & ids) | (~better & best->id);
}

/* The best of logits begin … end - 1 of a row, whose first is `at`. */
INLINE struct best segment(
    enum format format, const int random, const void *logits, long at, long begin, long end, const struct draw *draw,
    float floor)
{
    const uint64_t key = key_of(draw);
    const vec temperature = all((float)draw->temperature);
    const struct lanes none = {all(-INFINITY), all(floor), {0}, {0}};
    struct lanes best[2] = {none, none}; /* one does not wait for the other */
    long i = begin;
    for (; i + 2 * LANES <= end; i += 2 * LANES)
        for (int half = 0; half < 2; half++) {
            const long from = i + half * LANES;
            const vec logit = load(format, logits, at + from);
            look(random, best + half, logit, LANE + (int)from, ~(ivec){0}, temperature, key);
        }
    for (; i < end; i += LANES) {
        const ivec there = LANE < (int)least(LANES, end - i);
        look(random, best, load_first(format, logits, at + i, end - i), LANE + (int)i, there, temperature, key);
    }
    const vec zero = best[0].zero + best[1].zero;
    struct best found = {-INFINITY, 0, any(zero != zero)};
    for (int half = 0; half < 2; half++)
        for (int lane = 0; lane < LANES; lane++) {
            const float score = best[half].score[lane];
            const int id = best[half].id[lane];
            if (score > found.score || (score == found.score && id < found.id)) {
                found.score = score;
                found.id = id;
            }
        }
    return found;
}

/* Sum of e^(score - top), in doubles now and then, so that a sum of many is as good as its terms. */
static double mass(const float *scores, long count, float top)
{
    double sum = 0;
    for (long begin = 0; begin < count; begin += 64 * LANES) {
        vec part = {0};
        for (long i = begin; i < least(count, begin + 64 * LANES); i += LANES) {
            const vec share = exponential(load_first(FP32, scores, i, count - i) - top);
            part += chosen(LANE < (int)least(LANES, count - i), share, (vec){0});
        }
        sum += sum_of(part);
    }
    return sum;
}

struct cut {
    float score;
    long kept;   /* scores from it on: they are the first now */
    long above;  /* how many of them are larger … */
    double mass; /* … and their mass */
};

/* The least score with fewer than `count` scores, and less mass than `limit`, above it; by bisection of values. */
static struct cut find_cut(float *scores, long size, float top, long count, double limit)
{
    struct cut cut = {0, 0, 0, 0};
    for (;;) {
        float *rest = scores + cut.above;
        vec lows = all(rest[0]), highs = lows;
        for (long i = 0; i < size; i += LANES) {
            const ivec there = LANE < (int)least(LANES, size - i);
            const vec v = chosen(there, load_first(FP32, rest, i, size - i), lows);
            lows = -larger(-lows, -v);
            highs = larger(highs, v);
        }
        const float low = -largest_of(-lows), high = largest_of(highs), middle = low + (high - low) / 2;
        if (low == high) {
            cut.score = low;
            cut.kept = cut.above + size;
            return cut;
        }
        const float pivot = middle > low ? middle : high;
        long upper = 0;
        for (long i = 0; i < size; i++) {
            const float score = rest[i];
            rest[i] = rest[upper];
            rest[upper] = score;
            upper += score >= pivot;
        }
        const double more = mass(rest, upper, top);
        if (cut.above + upper < count && cut.mass + more < limit) {
            cut.above += upper;
            cut.mass += more;
            size -= upper;
        } else {
            size = upper;
        }
    }
}

/* The least score that passes top_k, then top_p of the rest, then min_p. `scores` has space for a row. */
INLINE float filter(enum format format, const void *logits, long at, long vocab, const struct draw *draw, float *scores)
{
    const vec temperature = all((float)draw->temperature);
    vec tops = all(-INFINITY), zero = {0};
    for (long i = 0; i < vocab; i += LANES) {
        const vec score = load_first(format, logits, at + i, vocab - i) / temperature;
        zero += score - score;
        tops = larger(tops, chosen(LANE < (int)least(LANES, vocab - i), score, tops));
        store_first(FP32, scores, i, score, vocab - i);
    }
    const float top = largest_of(tops), reach = top + (float)draw->reach;
    const int counts = draw->top_k > 0 && draw->top_k < vocab;
    if (any(zero != zero) || (!counts && draw->top_p >= 1))
        return reach;
    double whole = draw->top_p < 1 && !counts ? mass(scores, vocab, top) : 0;
    long near = 0;
    for (long i = 0; i < vocab; i++) {
        const float score = scores[i];
        scores[near] = score;
        near += score >= top - NOISE_RANGE;
    }
    struct cut cut = {top - NOISE_RANGE, near, 0, 0};
    if (counts && draw->top_k < near) {
        cut = find_cut(scores, near, top, draw->top_k, INFINITY);
        whole = cut.mass + (draw->top_k - cut.above) * mass(&cut.score, 1, top);
    } else if (counts) {
        whole = mass(scores, near, top);
    }
    if (draw->top_p < 1)
        cut = find_cut(scores, cut.kept, top, vocab, draw->top_p * whole);
    return reach > cut.score ? reach : cut.score;
}

INLINE int filters(const struct draw *draw, long vocab)
{
    const int some = (draw->top_k > 0 && draw->top_k < vocab) || draw->top_p < 1 || draw->reach > -INFINITY;
    return draw->temperature > 0 && some;
}

INLINE void sample(
    enum format format, const void *logits, long vocab, const struct draw *draws, long samples, float *room,
    float *floors, float *scores, int64_t *tokens, char *finite)
{
#pragma omp parallel if (samples * vocab >= WORTH_THREADS)
    {
#pragma omp for schedule(dynamic)
        for (long i = 0; i < samples; i++) {
            const int first = i == 0 || draws[i].row != draws[i - 1].row;
            floors[i] = scores[i] = -INFINITY;
            tokens[i] = 0;
            finite[i] = 1;
            if (first && filters(draws + i, vocab)) {
                float *own = room + omp_get_thread_num() * vocab;
                floors[i] = filter(format, logits, draws[i].row * vocab, vocab, draws + i, own);
            }
        }
#pragma omp single
        for (long i = 1; i < samples; i++)
            if (draws[i].row == draws[i - 1].row)
                floors[i] = floors[i - 1];
#pragma omp for collapse(2) schedule(dynamic)
        for (long i = 0; i < samples; i++)
            for (long begin = 0; begin < vocab; begin += SEGMENT) {
                const long at = draws[i].row * vocab, end = least(begin + SEGMENT, vocab);
                const struct best best = draws[i].temperature > 0
                    ? segment(format, 1, logits, at, begin, end, draws + i, floors[i])
                    : segment(format, 0, logits, at, begin, end, draws + i, floors[i]);
#pragma omp critical
                {
                    if (best.bad)
                        finite[i] = 0;
                    if (best.score > scores[i] || (best.score == scores[i] && best.id < tokens[i])) {
                        scores[i] = best.score;
                        tokens[i] = best.id;
                    }
                }
            }
    }
    for (long i = 0; i < samples; i++)
        if (!finite[i])
            tokens[i] = 0;
}

/* Draws `samples` tokens from `logits` [rows, vocab], contiguous; 0 in rows that are not `finite`. Buffers: `room` [threads,
   vocab] if a draw has filters, `floors` and `scores` [samples]. */
EXPORT void baton_sample(
    int format, const void *logits, long vocab, const struct draw *draws, long samples, float *room, float *floors,
    float *scores, int64_t *tokens, char *finite)
{
    BY_FORMAT(format, sample, logits, vocab, draws, samples, room, floors, scores, tokens, finite);
}
