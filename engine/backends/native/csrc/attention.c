/* Causal attention over paged KV: softmax(q k^T scale) v for each query row, by online softmax, with optional soft cap
   and sinks (additional scores in the denominator).

   A pool layer is [blocks, kv_heads, vectors, block, dim], or quantized (kv_bytes.h): then a tile is dequantized first.
   Query heads that share a KV head are neighbouring rows, so each KV block is read once for all of them. Positions are
   processed in tiles that begin at multiples of TILE in the sequence; each tile has a softmax of its own, and a row's
   tiles are merged in order. So a row's bits depend only on its query and its sequence's KV. Positions that a row may
   not see do not affect it: slots that were never written may hold anything. */

#include "attention_step.h"
#include "attention_bf16.h"
#include "attention_fp32.h"
#include "attention_wide.h"
#include "kv_bytes.h"

struct call {
    const struct attention_params *params;
    const char *queries, *pool;
    long query_stride;
    char *out;
};

struct scratch {
    float maximum[MAX_ROWS], total[MAX_ROWS], sums[MAX_ROW_NUMBERS];
    int64_t positions[MAX_ROWS]; /* of the rows' own keys */
    struct hidden hidden[GROUP];
    float tile_maximum[GROUP], tile_total[GROUP], tile_sums[GROUP * MAX_DIM];
    _Alignas(64) char unpacked[2 * TILE * MAX_DIM * 4]; /* dequantized blocks of a tile */
    union {
        struct fp32_scratch fp32;
#if defined HAS_BF16
        struct bf16_scratch bf16;
#endif
#if defined HAS_WIDE
        struct wide_scratch wide;
#endif
    };
};

static long group_rows(const struct attention *step)
{
#if defined HAS_BF16
    if (step->format == BF16)
        return GROUP;
#endif
    return FP32_GROUP;
}

/* Position of a row's own key: its place in the sequence. */
static long position_of(const struct attention *step, const struct unit *unit, long row)
{
    return unit->position + (unit->first + row) / step->shared;
}

/* Visible span of the tile that begins at `base`, for rows at these positions, in order. */
static struct span span_of(const struct attention *step, long base, long first_position, long last_position)
{
    return (struct span){
        most(0, begin_of(step, first_position) - base), most(0, least(TILE, last_position + 1 - base))};
}

static const struct tree_mask *tree_mask_of(const struct attention *step, const struct unit *unit, long row)
{
    return step->tree_masks + unit->token + (unit->first + row) / step->shared;
}

/* Visible span of the tile that begins at `base` for one row; its tree mask goes to `hidden`. */
static struct span span_of_row(
    const struct attention *step, const struct unit *unit, long row, long base, long own, struct hidden *hidden)
{
    if (!step->tree_masks)
        return span_of(step, base, own, own);
    const struct tree_mask *mask = tree_mask_of(step, unit, row);
    const long guesses = own - mask->last; /* drafts up to its own */
    const uint64_t left_out = ~mask->bits & (guesses > 0 ? ~(uint64_t)0 >> (64 - guesses) : 0);
    *hidden = (struct hidden){{0}};
    for (long word = 0; word < TILE / 64; word++) {
        const long shift = mask->last + 1 - base - word * 64;
        if (shift > -64 && shift < 64)
            hidden->words[word] = shift < 0 ? left_out >> -shift : left_out << shift;
    }
    return span_of(step, base, mask->position, own);
}

static const char *block_of(
    const struct attention *step, const struct call *call, const struct unit *unit, long head, long position)
{
    const long place = step->tables[unit->work * step->table_stride + position / step->block];
    return call->pool + (place * step->kv_heads + head) * step->vectors * vector_bytes(step);
}

/* Whether values that only some of the rows see are finite: 0 x NaN is NaN. */
static int finite_where_views_differ(
    const struct attention *step, const struct call *call, const struct unit *unit, long head)
{
    const long first = earliest(step, unit, 0), last = position_of(step, unit, unit->rows - 1);
    const long dim = step->dim, values = value_place(step) / token_bytes(step);
    ivec strange = {0};
    for (int edge = 0; edge < 2; edge++) {
        const long begin = edge ? first + 1 : begin_of(step, first), end = edge ? last + 1 : begin_of(step, last);
        for (long position = begin; position < end; position++) {
            const char *kv = block_of(step, call, unit, head, position);
            if (is_quantized(step)) { /* values that are not finite have such a scale */
                const char *scales = kv + (step->vectors - 1) * vector_bytes(step) + step->block * dim;
                strange |= all(scale_at(scales, position % step->block)) * 0.0f != 0;
                continue;
            }
            for (long d = 0; d < step->value_dim; d += LANES) {
                const vec value = load_first(
                    step->format, kv, (values + position % step->block) * dim + d, step->value_dim - d);
                strange |= value - value != 0;
            }
        }
    }
    for (int lane = 0; lane < LANES; lane++)
        if (strange[lane])
            return 0;
    return 1;
}

static struct state state_at(float *floats, long rows)
{
    return (struct state){floats, floats + rows, floats + 2 * rows};
}

/* The states of a unit's rows for one of its tiles. */
static struct state partial_of(const struct attention *step, const struct unit *unit, long head, long tile)
{
    const long size = unit->rows * (state_width(step) + 2);
    const long place = (tile - first_tile(step, unit)) * step->kv_heads + head;
    return state_at(step->partials + unit->partial + place * size, unit->rows);
}

static struct state from_row(const struct attention *step, struct state state, long row)
{
    return (struct state){state.maximum + row, state.total + row, state.sums + row * state_width(step)};
}

static void clear_state(const struct attention *step, long rows, struct state state)
{
    for (long row = 0; row < rows; row++) {
        state.maximum[row] = -INFINITY;
        state.total[row] = 0;
    }
    memset(state.sums, 0, rows * state_width(step) * sizeof(float));
}

static void write_out(
    const struct attention *step, const struct call *call, const struct unit *unit, long head, long first, long rows,
    struct state state)
{
    const long dim = step->value_dim, width = state_width(step), shared = step->shared;
    for (long row = 0; row < rows; row++) {
        const long place = unit->first + first + row, token = unit->token + place / shared;
        const long query_head = head * shared + place % shared;
        const long to = (token * step->kv_heads * shared + query_head) * dim;
        float kept = 1, total = state.total[row];
        if (call->params->sinks) {
            const float sink = call->params->sinks[query_head], now = sink > state.maximum[row] ? sink : state.maximum[row];
            kept = expf(state.maximum[row] - now);
            total = total * kept + expf(sink - now);
        }
        for (long d = 0; d < dim; d += LANES) {
            const vec sums = load(FP32, state.sums, row * width + d) * all(kept);
            store_first(step->format, call->out, to + d, sums / all(total), dim - d);
        }
    }
}

static void take_queries(
    const struct attention *step, const struct call *call, const struct unit *unit, long head, long first, long rows,
    struct scratch *own)
{
    const long shared = step->shared;
    for (long row = 0; row < rows; row++) {
        const long place = unit->first + first + row, token = unit->token + place / shared;
        const char *query = call->queries + token * call->query_stride * (token_bytes(step) / step->dim)
            + (head * shared + place % shared) * token_bytes(step);
#if defined HAS_BF16
        if (step->format == BF16) {
            take_bf16_query(step, query, row, &own->bf16);
            continue;
        }
#else
        if (is_wide(step)) {
            take_wide_query(step, query, row, &own->wide);
            continue;
        }
#endif
        take_fp32_query(step, query, call->params->scale, row, &own->fp32);
    }
#if defined HAS_WIDE
    if (is_wide(step))
        take_wide_queries(step, rows, &own->wide);
#endif
}

/* The step's arguments for prepared tiles: without bf16 products, a quantized pool is dequantized to fp32. */
static struct attention as_prepared(const struct attention *step)
{
    struct attention found = *step;
#if !defined HAS_BF16
    if (is_quantized(step))
        found.format = FP32;
#endif
    return found;
}

/* Dequantizes the visible part of a tile, and points `blocks` to the result. */
static void unpack_tile(
    const struct attention *step, const struct attention *prepared, const char **blocks, struct span seen,
    struct scratch *own)
{
    const long block = step->block, first = seen.first / block, last = (seen.end - 1) / block;
    const long bytes = block * token_bytes(prepared);
    for (long i = first; i <= last; i++) {
        const long begin = most(0, seen.first - i * block), end = least(block, seen.end - i * block);
        char *to = own->unpacked + i * step->vectors * bytes;
        for (long v = 0; v < step->vectors; v++)
            unpack_tokens(
                step, prepared->format, blocks[i] + v * vector_bytes(step), blocks[i + 1] + v * vector_bytes(step), begin, end,
                to + v * bytes);
        blocks[i] = to;
    }
    blocks[last + 1] = blocks[last];
}

/* Prepares a tile for all rows of a unit. The entry behind its blocks is the block that is read next. */
static void prepare(const struct attention *step, const char *const *blocks, struct span seen, struct scratch *own)
{
    const long block = step->block, first = seen.first / block, last = (seen.end - 1) / block;
    for (long i = first; i <= last; i++) {
#if defined HAS_WIDE
        if (is_wide(step)) {
            prepare_wide(step, blocks[i], i * block, blocks[i + 1], &own->wide);
            continue;
        }
#endif
        const char *next = i < last || step->vectors == 1 ? blocks[i + 1] : blocks[first] + value_place(step);
#if defined HAS_BF16
        if (step->format == BF16) {
            prepare_bf16_keys(step, blocks[i], i * block, next, &own->bf16);
            continue;
        }
#endif
        prepare_fp32(step, blocks[i], i * block, next, &own->fp32);
    }
#if defined HAS_BF16
    if (step->format == BF16)
        prepare_bf16_values(step, blocks, seen, &own->bf16);
#endif
}

static void attend_group(
    const struct attention *step, const struct attention_params *params, const char *const *blocks,
    const struct visible *visible, long first, long rows, struct scratch *own, struct state target)
{
#if defined HAS_BF16
    if (step->format == BF16) {
        attend_bf16(step, params, visible, first, rows, &own->bf16, target);
        return;
    }
#else
    if (is_wide(step)) {
        attend_wide(step, params, blocks, visible, first, rows, &own->wide, target);
        return;
    }
#endif
    attend_fp32(step, params, blocks, visible, first, rows, &own->fp32, target);
}

/* Computes the tiles of a unit for its rows from `first` on. */
static void attend_rows(
    const struct attention *step, const struct call *call, const struct unit *unit, long head, long first, long rows,
    const char *next, struct scratch *own)
{
    const struct state state = {own->maximum, own->total, own->sums};
    const struct state found = {own->tile_maximum, own->tile_total, own->tile_sums};
    const struct attention prepared = as_prepared(step);
    const long block = step->block, group = group_rows(step);
    for (long row = 0; row < rows; row++)
        own->positions[row] = position_of(step, unit, first + row);
    const long start = earliest(step, unit, first), last = own->positions[rows - 1];
    take_queries(step, call, unit, head, first, rows, own);
    clear_state(step, rows, state);
#if defined HAS_BF16
    if (step->format == BF16)
        clear_bf16(step, &own->bf16);
#endif
    for (long tile = most(unit->begin, begin_of(step, start) / TILE); tile <= last / TILE && tile < unit->end; tile++) {
        const struct span seen = span_of(step, tile * TILE, start, last);
        const char *blocks[TILE + 1];
        for (long at = seen.first / block * block; at < seen.end; at += block)
            blocks[at / block] = block_of(step, call, unit, head, tile * TILE + at);
        const int more = tile < last / TILE && tile + 1 < unit->end;
        blocks[(seen.end - 1) / block + 1] = more ? block_of(step, call, unit, head, (tile + 1) * TILE) : next;
        if (is_quantized(step))
            unpack_tile(step, &prepared, blocks, seen, own);
        prepare(&prepared, blocks, seen, own);
        for (long row = 0; row < rows; row += group) {
            const long count = least(group, rows - row);
            struct visible visible = {
                span_of(step, tile * TILE, earliest(step, unit, first + row), own->positions[row + count - 1])};
            if (visible.all.first >= visible.all.end)
                continue;
            visible.hidden = step->tree_masks ? own->hidden : 0;
            for (long i = 0; i < count; i++)
                visible.row[i] = span_of_row(
                    step, unit, first + row + i, tile * TILE, own->positions[row + i], own->hidden + i);
            const struct state target = unit->partial < 0
                ? found : from_row(step, partial_of(step, unit, head, tile), first + row);
            attend_group(&prepared, call->params, blocks, &visible, row, count, own, target);
            if (unit->partial < 0)
                merge(count, step->value_dim, state_width(step), found, from_row(step, state, row));
        }
    }
    if (unit->partial < 0)
        write_out(step, call, unit, head, first, rows, state);
}

/* First block that a unit reads. */
static const char *first_block(
    const struct attention *step, const struct call *call, const struct unit *unit, long head)
{
    return block_of(step, call, unit, head, most(unit->begin * TILE, begin_of(step, earliest(step, unit, 0))));
}

static void attend_unit(
    const struct attention *step, const struct call *call, const struct unit *unit, long head, struct scratch *own)
{
    const long shared = step->shared;
    const char *next = first_block(step, call, unit, head);
    if (head + 1 < step->kv_heads)
        next = first_block(step, call, unit, head + 1);
    else if (unit + 1 < step->units + step->unit_count)
        next = first_block(step, call, unit + 1, 0);
    if (unit->partial >= 0)
        for (long tile = unit->begin; tile < unit->end; tile++)
            memset(partial_of(step, unit, head, tile).total, 0, unit->rows * sizeof(float));
    if (position_of(step, unit, 0) == position_of(step, unit, unit->rows - 1)
            || finite_where_views_differ(step, call, unit, head)) {
        attend_rows(step, call, unit, head, 0, unit->rows, next, own);
        return;
    }
    for (long row = 0, end; row < unit->rows; row = end) { /* token by token: its rows see the same */
        end = least(unit->rows, ((unit->first + row) / shared + 1) * shared - unit->first);
        attend_rows(step, call, unit, head, row, end - row, next, own);
    }
}

/* Merges the tiles of rows whose tiles are in several units, in order. */
static void merge_partials(
    const struct attention *step, const struct call *call, const struct unit *unit, long head, struct scratch *own)
{
    const struct state state = {own->maximum, own->total, own->sums};
    const long last = position_of(step, unit, unit->rows - 1);
    clear_state(step, unit->rows, state);
    for (long tile = first_tile(step, unit); tile <= last / TILE; tile++)
        merge(unit->rows, step->value_dim, state_width(step), partial_of(step, unit, head, tile), state);
    write_out(step, call, unit, head, 0, unit->rows, state);
}

EXPORT void baton_attend(
    const struct attention *step, const struct attention_params *params, const void *queries, long query_stride,
    const void *pool, void *out)
{
    const struct call call = {params, queries, pool, query_stride, out};
#pragma omp parallel
    {
        struct scratch own;
#if defined HAS_BF16
        own.bf16.shaped = 0;
#endif
#pragma omp for collapse(2) schedule(dynamic)
        for (long unit = 0; unit < step->unit_count; unit++)
            for (long head = 0; head < step->kv_heads; head++)
                attend_unit(step, &call, step->units + unit, head, &own);
#if defined HAS_AMX
        if (step->format == BF16 && own.bf16.shaped)
            release_tiles();
#endif
        if (step->partials) {
#pragma omp for collapse(2) schedule(dynamic)
            for (long unit = 0; unit < step->unit_count; unit++)
                for (long head = 0; head < step->kv_heads; head++) {
                    const struct unit *first = step->units + unit;
                    if (first->partial >= 0 && first->begin == first_tile(step, first))
                        merge_partials(step, &call, first, head, &own);
                }
        }
    }
}
