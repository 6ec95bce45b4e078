/* A block of rows in int8 times a panel of quantized weights. */

#ifndef QUANTIZED_PRODUCT_H
#define QUANTIZED_PRODUCT_H

#include "finish.h"
#include "product_int8.h"

#define UNITS_TOGETHER 8
#define QUANTIZED_AHEAD 8192 /* bytes: how far before its use a panel of INT4 is asked for; half of it of INT8 */

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
    const char *panel, *after;
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

/* Asks for memory that follows, in this panel or in what is read after it. */
INLINE void ask_ahead(const struct quantized_part *part, const char *from, long bytes)
{
    const long ahead = part->layer->weights == INT4 ? QUANTIZED_AHEAD : QUANTIZED_AHEAD / 2;
    const long left = part->panel + quantized_panel_bytes(part->layer) - from - ahead;
    const char *next = left > 0 || !part->after ? from + ahead : part->after - left;
    for (long line = 0; line < bytes; line += 64)
        __builtin_prefetch(next + line, 0, 2);
}

/* Describes the units from input `begin` on, and unpacks those that have to be. Returns how many there are. */
static long take_units(const struct quantized_part *part, long begin, const uint8_t *table, struct unit_room *room, struct unit *units)
{
    const struct linear *layer = part->layer;
    const long depth = whole_units(layer), group = group_of(layer), unit = unit_of(layer);
    long count = 0;
    for (long k = begin; k < depth && count < UNITS_TOGETHER; k += unit, count++) {
        const char *own = part->panel + k / group * group_bytes(layer), *codes = own + codes_bytes(layer, k % group);
        const char *scales = own + codes_bytes(layer, least(group, depth - k / group * group));
        struct unit *to = units + count;
        *to = (struct unit){.depth = unit, .zero = code_zero(layer), .has_sign = 0};
#if !defined HAS_VNNI
        to->has_sign = layer->weights == INT8;
#endif
        to->scales = room->scales + count * PANEL;
        if (layer->offsets)
            to->offsets = room->offsets + count * PANEL;
        for (long column = 0; column < PANEL; column += LANES) {
            store(FP32, room->scales, count * PANEL + column, layer->group ? load_half(scales, column) : all(1));
            if (layer->offsets)
                store(FP32, room->offsets, count * PANEL + column, load_half(scales + PANEL * 2, column));
        }
        ask_ahead(part, codes, codes_bytes(layer, unit));
        to->codes = (const uint8_t *)codes;
        if (layer->weights == INT4) {
            uint8_t *own_codes = room->codes + count * unit * PANEL;
            to->codes = own_codes;
            if (table)
                unpack_codes(codes, unit, table, own_codes);
            else
                unpack_codes(codes, unit, 0, own_codes);
        }
    }
    return count;
}

/* From a row and a unit on. */
INLINE struct unit_rows rows_from(struct unit_rows x, long row, long unit, long depth)
{
    x.codes += row * x.stride + unit * depth;
    x.factors = factor_of(&x, row) + unit;
    return x;
}

/* sums [rows][PANEL] = x panel, without what finishes them. */
static void multiply_quantized(const struct quantized_part *part, struct unit_room *room, float *sums)
{
    const struct linear *layer = part->layer;
    const long depth = whole_units(layer), unit = unit_of(layer), rows = part->end - part->first;
    uint8_t table[16];
    for (int code = 0; code < 16; code++)
        table[code] = layer->table ? layer->table[code] : 0;
    memset(sums, 0, rows * PANEL * sizeof *sums);
#if defined INT8_STRIP
    if (amx_allowed && rows >= INT8_STRIP)
        shape_int8_tiles(unit);
#endif
    for (long begin = 0; begin < depth; begin += UNITS_TOGETHER * unit) {
        struct unit units[UNITS_TOGETHER];
        const long count = take_units(part, begin, layer->table ? table : 0, room, units);
        const char *x = part->x + part->first * part->stride;
        const struct unit_rows all_rows = {x + begin, part->stride, (const struct factor *)(x + depth) + begin / unit};
        long row = 0;
#if defined INT8_STRIP
        for (; amx_allowed && row + INT8_STRIP <= rows; row += INT8_STRIP)
            for (long i = 0; i < count; i++)
                add_unit_strip(units + i, rows_from(all_rows, row, i, unit), sums + row * PANEL);
#endif
        const long left = rows - row, strips = rounded_up(left, INT8_ROWS) / INT8_ROWS, begin_row = row;
        for (long strip = 0; strip < strips; strip++) { /* of nearly equal size: few rows take as long as some more */
            const long first = begin_row + left * strip / strips, end = begin_row + left * (strip + 1) / strips;
            adder_of(units, end - first)(units, count, rows_from(all_rows, first, 0, unit), sums + first * PANEL);
        }
    }
}

#endif
#endif
