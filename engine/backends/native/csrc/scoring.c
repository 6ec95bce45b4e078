/* How likely tokens were: log-probabilities, ranks, and the likeliest of their rows (see scorer.py).

   A token's words depend on its row and on nothing else: one thread looks at all of a row, in one order. */

#include <omp.h>

#include "vector.h"

#define MOST_TOP 20
#define LEAST_LOGPROB -9999.0
#define WORTH_THREADS 32768

static const ivec LANE = LANE_NUMBERS;

/* The largest logits so far, falling; of equal ones the lower id comes first. */
struct likeliest {
    long count;
    float values[MOST_TOP + 1];
    int32_t ids[MOST_TOP + 1];
};

/* Takes a logit of a higher id than all before into a list of `top`, unless it is full of others that are no smaller. */
INLINE void take(struct likeliest *best, long top, float value, int32_t id)
{
    long place = best->count;
    if (place == top && !(value > best->values[top - 1]))
        return;
    for (; place > 0 && value > best->values[place - 1]; place--) {
        best->values[place] = best->values[place - 1];
        best->ids[place] = best->ids[place - 1];
    }
    best->values[place] = value;
    best->ids[place] = id;
    best->count += best->count < top;
}

/* The largest logit of a row whose first is `at`; and the `top` largest. */
INLINE float find_likeliest(enum format format, const void *logits, long at, long vocab, long top, struct likeliest *best)
{
    vec largest = all(-INFINITY);
    float floor = -INFINITY; /* what is not larger changes nothing */
    for (long i = 0; i < vocab; i += LANES) {
        const ivec there = LANE < (int)least(LANES, vocab - i);
        const vec x = chosen(there, load_first(format, logits, at + i, vocab - i), all(-INFINITY));
        largest = larger(x, largest);
        if (top && any(x > floor)) {
            for (int lane = 0; lane < LANES; lane++)
                if (x[lane] > floor)
                    take(best, top, x[lane], i + lane);
            if (best->count == top)
                floor = best->values[top - 1];
        }
    }
    return largest_of(largest);
}

/* The sum of e^(logit - largest), in doubles now and then, so that a sum of many is as good as its terms; and how many
   logits are larger than `own`. NaN in a row that is not finite. */
INLINE double sum_up(enum format format, const void *logits, long at, long vocab, float largest, float own, long *above)
{
    double sum = 0;
    vec zero = {0}; /* NaN once a logit was not finite */
    for (long begin = 0; begin < vocab; begin += 64 * LANES) {
        vec part = {0};
        ivec count = {0};
        for (long i = begin; i < least(vocab, begin + 64 * LANES); i += LANES) {
            const ivec there = LANE < (int)least(LANES, vocab - i);
            const vec x = load_first(format, logits, at + i, vocab - i);
            zero += x - x;
            part += chosen(there, exponential(x - largest), (vec){0});
            count -= there & (x > own);
        }
        sum += sum_of(part);
        for (int lane = 0; lane < LANES; lane++)
            *above += count[lane];
    }
    return sum + sum_of(zero);
}

INLINE void put(int32_t *word, float logit, float largest, double log_sum)
{
    const double logprob = (double)logit - largest - log_sum;
    const float told = logprob > LEAST_LOGPROB ? logprob : logprob == logprob ? LEAST_LOGPROB : NAN;
    memcpy(word, &told, sizeof told);
}

INLINE void score_row(enum format format, const void *logits, long at, long vocab, long token, long top, int32_t *words)
{
    struct likeliest best = {0};
    const float own = load_first(format, logits, at + token, 1)[0];
    const float largest = find_likeliest(format, logits, at, vocab, top, &best);
    long above = 0;
    const double log_sum = log(sum_up(format, logits, at, vocab, largest, own, &above));
    put(words, own, largest, log_sum);
    words[1] = above + 1;
    for (long i = 0; i < top; i++) {
        words[2 + i] = best.ids[i];
        put(words + 2 + top + i, best.values[i], largest, log_sum);
    }
}

/* The words of `count` tokens, int32 [count, 2 + 2 x top], in the `rows` of logits [rows, vocab], contiguous; rows null:
   the first token's is the first, and so on. */
EXPORT void baton_score(
    int format, const void *logits, long vocab, const int64_t *rows, const int64_t *tokens, long count, long top,
    int32_t *words)
{
#pragma omp parallel for schedule(dynamic) if (count * vocab >= WORTH_THREADS)
    for (long i = 0; i < count; i++) {
        const long at = (rows ? rows[i] : i) * vocab;
        int32_t *own = words + i * (2 + 2 * top);
        BY_FORMAT(format, score_row, logits, at, vocab, tokens[i], top, own);
    }
}
