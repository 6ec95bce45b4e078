/* A block of rows in int8 times a panel of quantized weights. */

#ifndef QUANTIZED_PRODUCT_H
#define QUANTIZED_PRODUCT_H

#include "finish.h"
#include "product_int8.h"

#define UNITS_TOGETHER 8
#define QUANTIZED_AHEAD 8192 /* bytes: how far before its use a panel is asked for */

#if defined HAS_INT8_PRODUCT

/* Where a block of the depth is made ready. */
struct unit_room {
    uint8_t codes[UNITS_TOGETHER * UNIT * PANEL];
    float scales[UNITS_TOGETHER * PANEL], offsets[UNITS_TOGETHER * PANEL];
};

/* A panel of some rows: rows first … end - 1 of x, whose rows are `stride` bytes apart. */
struct quantized_part {
    const struct linear *layer;
    const char *x;
    long stride, first, end;
    const char *panel, *panel_end, *after;
};

/* Codes of INT4 as bytes, or what the table has for them. */
INLINE void unpack_codes(const char *from, long depth, const uint8_t *table, uint8_t *to)
{
    BYTES values = {0};
    if (table)
        for (unsigned long i = 0; i < sizeof values; i += 16)
            memcpy((char *)&values + i, table, 16);
    for (long k = 0; k < depth; k += 8)
        for (long column = 0; column < PANEL; column += LANES, from += sizeof(uvec)) {
            uvec word;
            memcpy(&word, from, sizeof word);
            uvec low = word & 0x0f0f0f0fu, high = word >> 4 & 0x0f0f0f0fu;
            if (table) {
                low = (uvec)INSTRUCTION(shuffle_epi8)(values, (BYTES)low);
                high = (uvec)INSTRUCTION(shuffle_epi8)(values, (BYTES)high);
            }
            memcpy(to + k * PANEL + column * 4, &low, sizeof low);
            memcpy(to + (k + 4) * PANEL + column * 4, &high, sizeof high);
        }
}

/* What lies QUANTIZED_AHEAD bytes further, in this panel or in what is read after it. */
INLINE const char *ahead_of(const struct quantized_part *part, const char *from)
{
    const long left = part->panel_end - from - QUANTIZED_AHEAD;
    return left > 0 || !part->after ? from + QUANTIZED_AHEAD : part->after - left;
}

INLINE void ask_for(const char *from, long bytes)
{
    for (long line = 0; line < bytes; line += 64)
        __builtin_prefetch(from + line, 0, 2);
}

/* A place in a panel: of a unit, and of its group. */
struct place {
    const char *codes, *scales; /* of its group's: behind its codes */
    long input, inside;         /* of the depth; so many are left in the group */
    const long group, depth;    /* of a group at most, and of the panel */
};

INLINE void enter_group(const struct linear *layer, const char *codes, struct place *place)
{
    place->inside = least(place->group, place->depth - place->input);
    place->codes = codes;
    place->scales = codes + codes_bytes(layer, place->inside);
}

/* Describes up to UNITS_TOGETHER units from a place on, before input `end`, and moves it behind them. Without `room` they
   are read as they lie; else what has to be is unpacked. Returns how many there are. */
static long take_units(
    const struct quantized_part *part, const struct unit_kind *kind, struct place *place, long end,
    struct unit_room *room, struct unit *units)
{
    const struct linear *layer = part->layer;
    const long unit_bytes = codes_bytes(layer, kind->depth), bytes = scales_bytes(layer);
    long count = 0;
    for (; place->input < end && count < UNITS_TOGETHER; count++) {
        struct unit *to = units + count;
        *to = (struct unit){(const uint8_t *)place->codes, place->scales, place->scales + PANEL * 2};
        if (room) { /* panels that are read as they lie are not asked for: the processor's own prefetcher is faster */
            ask_for(ahead_of(part, place->codes), unit_bytes);
            ask_for(ahead_of(part, place->scales), place->inside == kind->depth ? bytes : 0);
            to->scales = (const char *)(room->scales + count * PANEL);
            to->offsets = (const char *)(room->offsets + count * PANEL);
            for (long column = 0; kind->has_scales && column < PANEL; column += LANES) {
                store(FP32, room->scales, count * PANEL + column, load_half(place->scales, column));
                if (kind->has_offsets)
                    store(FP32, room->offsets, count * PANEL + column, load_half(place->scales + PANEL * 2, column));
            }
            if (layer->weights == INT4) {
                uint8_t *own_codes = room->codes + count * kind->depth * PANEL;
                to->codes = own_codes;
                if (kind->table)
                    unpack_codes(place->codes, kind->depth, kind->table, own_codes);
                else
                    unpack_codes(place->codes, kind->depth, 0, own_codes);
            }
        }
        place->input += kind->depth;
        place->inside -= kind->depth;
        place->codes += unit_bytes;
        if (!place->inside)
            enter_group(layer, place->codes + bytes, place);
    }
    return count;
}

INLINE struct unit_kind kind_of(const struct linear *layer, const uint8_t *table)
{
    struct unit_kind kind = {.depth = unit_of(layer), .zero = code_zero(layer), .table = layer->table ? table : 0};
    kind.has_scales = layer->group != 0;
    kind.has_offsets = layer->offsets != 0;
#if !defined HAS_VNNI
    kind.has_sign = layer->weights == INT8;
#endif
    return kind;
}

/* From a row and a unit on. */
INLINE struct unit_rows rows_from(struct unit_rows x, long row, long unit, long depth)
{
    x.codes += row * x.stride + unit * depth;
    x.factors = factor_of(&x, row) + unit;
    return x;
}

/* sums [splits][rows][PANEL] = x panel, without what finishes them. */
static void multiply_quantized(const struct quantized_part *part, struct unit_room *room, float *all_sums)
{
    const struct linear *layer = part->layer;
    const long depth = whole_units(layer), rows = part->end - part->first, split = depth / layer->splits;
    uint8_t table[16];
    struct unit_kind kind = kind_of(layer, table), in_place = kind;
    struct place place = {.group = group_of(layer), .depth = depth};
    enter_group(layer, part->panel, &place);
    for (int code = 0; kind.table && code < 16; code++)
        table[code] = layer->table[code];
    in_place.in_place = 1;
    in_place.has_halves = layer->weights == INT4;
    const units_adder *adders = rows <= INT8_ROWS ? adders_of(&in_place) : 0;
    if (adders) {
        kind = in_place;
        room = 0;
    } else {
        adders = adders_of(&kind);
    }
    memset(all_sums, 0, layer->splits * rows * PANEL * sizeof *all_sums);
#if defined INT8_STRIP
    if (amx_allowed && rows >= INT8_STRIP)
        shape_int8_tiles(kind.depth);
#endif
    const char *x = part->x + part->first * part->stride;
    struct unit_rows all_rows = {x, part->stride, depth, (const struct factor *)(x + planes_of(layer) * depth)};
    long first = 0;
#if defined INT8_STRIP
    first = amx_allowed ? rows / INT8_STRIP * INT8_STRIP : 0;
#endif
    /* Strips of nearly equal size: few rows take as long as some more. Divisions would be slow inside. */
    const long strips = (rows - first + INT8_ROWS - 1) / INT8_ROWS, size = strips ? (rows - first) / strips : 0;
    const long larger_strips = rows - first - size * strips;
    while (place.input < depth) {
        struct unit units[UNITS_TOGETHER];
        const long begin = place.input, count = take_units(part, &kind, &place, (begin / split + 1) * split, room, units);
        float *sums = all_sums + begin / split * rows * PANEL;
#if defined INT8_STRIP
        for (long row = 0; row < first; row += INT8_STRIP)
            for (long i = 0; i < count; i++)
                add_unit_strip(&kind, units + i, rows_from(all_rows, row, i, kind.depth), sums + row * PANEL);
#endif
        for (long strip = 0, row = first; strip < strips; strip++) {
            const long strip_rows = size + (strip < larger_strips);
            adders[strip_rows](&kind, units, count, rows_from(all_rows, row, 0, kind.depth), sums + row * PANEL);
            row += strip_rows;
        }
        all_rows.codes += count * kind.depth;
        all_rows.factors += count;
    }
}

#endif
#endif
