/* Splits a step's attention into units that threads take one after the other.

   The split does not change a row's bits: rows are independent, and each tile of positions has a softmax of its own, merged
   in the order of positions. So units can be small enough to keep all threads busy. */

#include <stdlib.h>
#include <string.h>

#include "attention_step.h"

#define UNITS_PER_THREAD 8 /* bounds the imbalance at the end */
#define ROW_COST 8         /* cost of reading and preparing a key and a value, in rows */

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

/* Up to `room` rows of a sequence from `first` on, with all tiles that they see. */
static struct unit whole_unit(
    const struct attention *step, long work, int64_t token, int64_t queries, int64_t length, int64_t first, int64_t room)
{
    struct unit unit = {work, token, length - queries, first};
    unit.rows = least(room, queries * step->shared - first);
    unit.begin = first_tile(step, &unit);
    unit.end = rounded_up(unit.position + (first + unit.rows - 1) / step->shared + 1, TILE) / TILE;
    unit.partial = -1;
    return unit;
}

/* Constants of attention_step.h that Python checks. */
EXPORT void baton_attention_limits(int64_t limits[4])
{
    const int64_t found[4] = {MAX_DIM, MAX_BLOCK, TILE, sizeof(struct unit) / sizeof(int64_t)};
    memcpy(limits, found, sizeof found);
}

/* Writes units, most expensive first, for sequences with these lengths, whose last `queries` positions are this step's, and
   the size of `partials`. Length 0 leaves a sequence out. `units` may be null. Returns the number of units. */
EXPORT long baton_plan(
    const struct attention *step, const int64_t *queries, const int64_t *lengths, long works, long threads,
    struct unit *units, int64_t *partial_floats)
{
    const int64_t shared = step->shared, shares = threads * UNITS_PER_THREAD;
    int64_t all_rows = 0, all_cost = 0;
    for (long work = 0; work < works; work++)
        all_rows += lengths[work] ? queries[work] * shared : 0;
    const int64_t most_rows = least(MAX_ROWS, MAX_ROW_NUMBERS / rounded_up(step->dim, 64));
    const int64_t together = most(GROUP, least(shared, most_rows)); /* a token's rows read its sequence's KV once */
    const int64_t room = least(most_rows, most(together, rounded_up(all_rows * step->kv_heads / shares, MAX_ROWS / 2)));
    for (long work = 0; work < works; work++)
        for (int64_t first = 0; lengths[work] && first < queries[work] * shared; first += room) {
            const struct unit unit = whole_unit(step, work, 0, queries[work], lengths[work], first, room);
            all_cost += cost(&unit);
        }
    const int64_t share = most(1, all_cost * step->kv_heads / shares);
    long count = 0;
    int64_t token = 0;
    *partial_floats = 0;
    for (long work = 0; work < works; token += queries[work], work++)
        for (int64_t first = 0; lengths[work] && first < queries[work] * shared; first += room) {
            const struct unit whole = whole_unit(step, work, token, queries[work], lengths[work], first, room);
            struct unit unit = whole;
            const int64_t tiles = whole.end - whole.begin;
            const int split = threads > 1 && tiles > 1 && whole.rows <= together && cost(&whole) > share;
            const int64_t pieces = split ? least(tiles, cost(&whole) / share + 1) : 1;
            if (pieces > 1) {
                unit.partial = *partial_floats;
                *partial_floats += tiles * step->kv_heads * whole.rows * (state_width(step) + 2);
            }
            for (int64_t piece = 0; piece < pieces; piece++, count++) {
                unit.begin = whole.begin + tiles * piece / pieces;
                unit.end = whole.begin + tiles * (piece + 1) / pieces;
                if (units)
                    units[count] = unit;
            }
        }
    if (units)
        qsort(units, count, sizeof *units, dearer_first);
    return count;
}
