/* What changes logits before a token is drawn: biases, penalties, what is forbidden (see engine/backends/adjuster.py).

   Only tokens that are spoken of are touched, except where a mask says of each whether it may come. */

#include <omp.h>

#include "vector.h"

#define FORBIDDEN -0x1p98f
#define WORD 32 /* tokens whose bits are in one word of a mask */
#define WORTH_THREADS 32768

struct row_change {
    int64_t row;
    int64_t biased, counted, forbidden; /* entries of the lists that follow */
    const int32_t *biased_ids;          /* each once */
    const float *biases;
    const int32_t *counted_ids;         /* each once: tokens of the prompt and of the output, … */
    const int32_t *counts;              /* … and how often they are in the output */
    const int32_t *forbidden_ids;
    const uint32_t *bits;               /* of the tokens that may come; NULL: all */
    double repetition, frequency, presence;
};

INLINE void forbid(float *x)
{
    if (*x - *x == 0) /* what is not finite stays so */
        *x = FORBIDDEN;
}

static void penalize(float *logits, long vocab, const struct row_change *change)
{
    const float repetition = (float)change->repetition, frequency = (float)change->frequency;
    const float presence = (float)change->presence;
    for (long i = 0; i < change->counted; i++) {
        const long id = change->counted_ids[i], count = change->counts[i];
        if (id >= vocab)
            continue;
        float x = logits[id];
        x = x > 0 ? x / repetition : x * repetition;
        x -= (float)count * frequency;
        logits[id] = x - (count > 0 ? presence : 0);
    }
}

static void mask(float *logits, long vocab, const uint32_t *bits)
{
    static const uvec lane = LANE_NUMBERS;
    for (long begin = 0; begin < vocab; begin += WORD) {
        const uint32_t word = bits[begin / WORD];
        for (long i = begin; word != UINT32_MAX && i < least(begin + WORD, vocab); i += LANES) {
            const uvec own = (word - (uvec){0}) >> (lane + (uint32_t)(i - begin));
            const vec x = load_first(FP32, logits, i, vocab - i);
            const ivec stays = ((own & 1) == 1) | (x - x != 0);
            store_first(FP32, logits, i, chosen(stays, x, all(FORBIDDEN)), vocab - i);
        }
    }
}

/* Changes rows of `logits` [rows, vocab], contiguous. */
EXPORT void baton_adjust(float *logits, long vocab, const struct row_change *changes, long count)
{
    long masked = 0;
    for (long i = 0; i < count; i++)
        masked += changes[i].bits != NULL;
#pragma omp parallel for schedule(dynamic) if (masked > 1 && masked * vocab >= WORTH_THREADS)
    for (long i = 0; i < count; i++) {
        const struct row_change *change = changes + i;
        float *own = logits + change->row * vocab;
        for (long j = 0; j < change->biased; j++)
            own[change->biased_ids[j]] += change->biases[j];
        penalize(own, vocab, change);
        if (change->bits)
            mask(own, vocab, change->bits);
        for (long j = 0; j < change->forbidden; j++)
            forbid(own + change->forbidden_ids[j]);
    }
}
