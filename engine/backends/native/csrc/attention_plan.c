/* Cuts a step's attention into units that threads take one after the other.

   However it is cut, a row's bits are the same: rows do not know each other, and each tile of a sequence's positions has a
   softmax of its own, merged with the others' in the order of positions. So units may be as small as it takes to keep all
   threads busy. */

#include <stdlib.h>
#include <string.h>

#include "attention_step.h"

#define UNITS_PER_THREAD 8 /* what is left over when units do not go evenly into the threads is one of these */
#define ROW_COST 8         /* reading and preparing a key and a value costs about what this many rows do with them */

static int64_t rounded_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t cost(const struct unit *unit) { return (unit->end - unit->begin) * (unit->rows + ROW_COST); }

static int dearer_first(const void *a, const void *b)
{
    const struct unit *one = a, *other = b;
    if (cost(one) != cost(other))
        return cost(one) < cost(other) ? 1 : -1;
    if (one->token != other->token)
        return one->token < other->token ? -1 : 1;
    if (one->first != other->first)
        return one->first < other->first ? -1 : 1;
    return one->begin < other->begin ? -1 : one->begin > other->begin;
}

/* What Python has to know of attention_step.h. */
EXPORT void baton_attention_limits(int64_t limits[4])
{
    const int64_t found[4] = {MAX_DIM, MAX_BLOCK, TILE, sizeof(struct unit) / sizeof(int64_t)};
    memcpy(limits, found, sizeof found);
}

/* Writes the units for `works` sequences of these lengths, of which the last `queries` positions are this step's, for so
   many threads; the dearest first. A length of 0 leaves a work out. `units` may be null. Returns how many there are;
   `partial_floats` is the room that `partials` has to have. */
EXPORT long baton_plan(
    const struct attention *step, const int64_t *queries, const int64_t *lengths, long works, long threads,
    struct unit *units, int64_t *partial_floats)
{
    const int64_t shared = step->shared, shares = threads * UNITS_PER_THREAD;
    int64_t all_rows = 0, all_cost = 0;
    for (long work = 0; work < works; work++) {
        if (!lengths[work])
            continue;
        all_rows += queries[work] * shared;
        all_cost += (queries[work] * shared + ROW_COST) * rounded_up(lengths[work], TILE) / TILE;
    }
    const int64_t most_rows = least(MAX_ROWS, MAX_ROW_NUMBERS / rounded_up(step->dim, 64));
    const int64_t together = most(GROUP, least(shared, most_rows)); /* a token's rows read its sequence's KV once */
    const int64_t room = least(most_rows, most(together, rounded_up(all_rows * step->kv_heads / shares, MAX_ROWS / 2)));
    const int64_t share = most(1, all_cost * step->kv_heads / shares);
    long count = 0;
    int64_t token = 0;
    *partial_floats = 0;
    for (long work = 0; work < works; token += queries[work], work++)
        for (int64_t first = 0; lengths[work] && first < queries[work] * shared; first += room) {
            struct unit unit = {work, token, lengths[work] - queries[work], first};
            unit.rows = least(room, queries[work] * shared - first);
            unit.partial = -1;
            const int64_t end = unit.position + (first + unit.rows - 1) / shared + 1;
            const int64_t tiles = rounded_up(end, TILE) / TILE;
            unit.end = tiles;
            const int split = threads > 1 && tiles > 1 && unit.rows <= together && cost(&unit) > share;
            const int64_t pieces = split ? least(tiles, cost(&unit) / share + 1) : 1;
            if (pieces > 1) {
                unit.partial = *partial_floats;
                *partial_floats += tiles * step->kv_heads * unit.rows * (state_width(step) + 2);
            }
            for (int64_t piece = 0; piece < pieces; piece++, count++) {
                unit.begin = tiles * piece / pieces;
                unit.end = tiles * (piece + 1) / pieces;
                if (units)
                    units[count] = unit;
            }
        }
    if (units)
        qsort(units, count, sizeof *units, dearer_first);
    return count;
}
