"""Multiplies by packed weights of 4 bits, run by run, with the scales behind the products.

    total[o, r] += scales[g, o] sum_i v[o, i] x[r, i] + offsets[g, o] sum_i x[r, i]    over the inputs i of group g

    v[o, i] = c[o, i] - zeros[g, o]    of int4 codes c; zeros are 8 where there are offsets or nothing

A run is 32 words of 16 bits of each output (`packed.py`). Place p of every word is a plane: 32 neighbouring inputs of
one group. Values of codes are exact in 16 bits, so products are exact but for their sums in fp32, and no weight is
rounded. With many rows there are more sums than weights: scales then multiply weights, which are rounded to the format
of x as a dequantized weight's are.

Two codes become two numbers by a few operations on a register of 32 bits: an int4 code c is the last digits of 2^7 + c
in bf16 and of 2^10 + c in fp16; the bits of an fp4 code, moved to the place of the exponent, are its value times a
power of two. The term that takes 2^7 away takes a group's zero, too. The interpreter computes the same without
assembly. The sums of x are products with 1.
"""

import torch
import triton
import triton.language as tl
from triton import knobs

from kernels.device import is_hopper
from kernels.quantized.packed import CODE_BITS, INT4_ZERO_CODE

COMPILED = tl.constexpr(not knobs.runtime.interpret)
WORDS = tl.constexpr(32)
"""Words of an output in a run; with four codes each, a run has 128 inputs."""
MAX_BEHIND_ROWS = tl.constexpr(32)
"""Up to this many rows a scale multiplies sums: they are fewer than weights."""
INT4_ZERO = tl.constexpr(INT4_ZERO_CODE)
INT4_OFFSET = tl.constexpr(8388608.0)
"""2^23, whose last digit is 1."""
FP16_TERM, BF16_TERM = tl.constexpr(-0x1C00), tl.constexpr(-0x3D00)
"""The bits of -2^10 in fp16 and of -2^7 in bf16, as int16; their last digits are 1."""
FP4_FACTOR = tl.constexpr(2.0**126)
"""Maps fp4's exponents to fp32's and bf16's."""


def loads_ahead(rows: int, device: torch.device) -> bool:
    """Returns whether the scales of a step are loaded one step ahead.

    With many rows a scale multiplies weights. On Hopper these stay in registers only if their scales are loaded in the
    same step: Triton changes the layout of what passes from step to step in shared memory. On other devices the weights
    have to pass through it, for several warps multiply the same ones and would each convert them.
    """
    return rows <= MAX_BEHIND_ROWS.value or not is_hopper(device)


@triton.constexpr_function
def bit_moves(kind: str, plane: int, bit: int) -> list[tuple[int, int]]:
    """Returns shifts to the left and masks that move a plane's codes to `bit`, and the sign of fp4 to bit 15."""
    targets = [bit, bit + 1, bit + 2, bit + 3 if kind == "int4" else 15]
    masks: dict[int, int] = {}
    for source, target in zip(CODE_BITS[kind][plane], targets, strict=True):
        masks[target - source] = masks.get(target - source, 0) | 1 << target
    return list(masks.items())


@triton.constexpr_function
def conversion(kind: str, plane: int, short: bool, zeros: bool = False) -> str:
    """Returns assembly that makes two numbers of a plane of two words: fp16 if `short`, else bf16.

    With `zeros`, a second argument has the numbers of -(2^10 + zero) in fp16, or of -(2^7 + zero) in bf16.
    """
    if kind == "int4":
        bit, start = 0, 0x64006400 if short else 0x43004300
        factor, term = (0x3C003C00, 0xE408E408) if short else (0x3F803F80, 0xC308C308)
    else:
        bit, start = 9 if short else 6, 0
        factor, term = 0x74007400 if short else 0x7E807E80, 0x80008000
    made, last = f"mov.b32 a, {start:#x};", "$2" if zeros else f"{term:#x}"
    for left, mask in bit_moves(kind, plane, bit):
        made += f"{'shl' if left >= 0 else 'shr'}.b32 b, $1, {abs(left)}; lop3.b32 a, b, {mask * 0x10001:#x}, a, 0xea;"
    made += f"mov.b32 b, {factor:#x}; mov.b32 c, {last}; fma.rn.{'f16x2' if short else 'bf16x2'} $0, a, b, c;"
    return "{.reg .b32 a, b, c;" + made + "}"


@triton.jit
def plane_values(
    words: tl.tensor, offset: tl.tensor, like: tl.tensor, PLANE: tl.constexpr, KIND: tl.constexpr, ZEROS: tl.constexpr
) -> tl.tensor:
    """Converts the codes of one plane of `words`, exactly, to the format of `like`.

    With `ZEROS` the `offset` `[TILE]` has the codes of int4 that stand for 0.
    """
    if COMPILED and like.dtype != tl.float32:
        SHORT: tl.constexpr = like.dtype == tl.float16
        asm: tl.constexpr = conversion(KIND, PLANE, SHORT, ZEROS)
        if ZEROS:
            terms = (offset | (FP16_TERM if SHORT else BF16_TERM))[:, None]
            return tl.inline_asm_elementwise(asm, "=r,r,r", [words, terms], dtype=like.dtype, is_pure=True, pack=2)
        else:
            return tl.inline_asm_elementwise(asm, "=r,r", [words], dtype=like.dtype, is_pure=True, pack=2)
    else:
        bits = words.to(tl.int32)
        if KIND == "int4":
            values = (((bits >> (4 * PLANE)) & 15) | 0x4B000000).to(tl.float32, bitcast=True)
            if ZEROS:
                values -= (offset.to(tl.float32) + INT4_OFFSET)[:, None]
            else:
                values -= INT4_OFFSET + INT4_ZERO
        else:
            if PLANE < 3:
                code = (bits << (16 + 3 * PLANE)) & -0x7E400000
            else:
                code = ((bits << 17) & -0x80000000) | ((bits << 12) & 0x00C00000) | ((bits << 11) & 0x01000000)
            values = code.to(tl.float32, bitcast=True) * FP4_FACTOR
        return values.to(like.dtype)


@triton.constexpr_function
def inputs_of_step(runs: int) -> int:
    return runs * 128


@triton.constexpr_function
def planes_of_scale(group: int, runs: int) -> int:
    """Returns how many neighbouring planes of a step surely belong to one group."""
    return 4 if group % (128 * runs) == 0 else 2 if group % 64 == 0 else 1


@triton.jit
def load_words(
    codes: tl.tensor, output: tl.tensor, run: tl.tensor, outputs: tl.tensor, runs: tl.tensor, RUNS: tl.constexpr
) -> tl.tensor:
    """Loads the words `[TILE, 32 RUNS]` of the step whose first run is `run`; a run behind the last is the last."""
    word = tl.arange(0, RUNS * WORDS)
    begin = codes + run * (outputs * WORDS)
    if RUNS == 1:
        return tl.load(begin + word[None, :] + (output * WORDS)[:, None])
    else:
        own = tl.minimum(run + word // WORDS, runs - 1) - run
        return tl.load(begin + (own * (outputs * WORDS) + word % WORDS)[None, :] + (output * WORDS)[:, None])


@triton.jit
def load_plane(
    x: tl.tensor, first: tl.tensor, inputs: tl.tensor, PLANE: tl.constexpr, EVEN: tl.constexpr, RUNS: tl.constexpr
) -> tl.tensor:
    """Loads the inputs of a plane of the step that begins at input `first`, `[32 RUNS, ROWS]`.

    `x` `[ROWS]` points to the first input of rows.
    """
    word = tl.arange(0, RUNS * WORDS)
    column = first + word // 32 * 128 + PLANE * 32 + word % 32
    addresses = x[None, :] + column[:, None]
    if EVEN:
        return tl.load(addresses)
    else:
        return tl.load(addresses, mask=(column < inputs)[:, None], other=0.0)


@triton.jit
def load_planes(
    x: tl.tensor, first: tl.tensor, inputs: tl.tensor, EVEN: tl.constexpr, RUNS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    a = load_plane(x, first, inputs, 0, EVEN, RUNS)
    b = load_plane(x, first, inputs, 1, EVEN, RUNS)
    c = load_plane(x, first, inputs, 2, EVEN, RUNS)
    return a, b, c, load_plane(x, first, inputs, 3, EVEN, RUNS)


@triton.jit
def load_term(
    table: tl.tensor,
    output: tl.tensor,
    first: tl.tensor,
    outputs: tl.tensor,
    groups: tl.tensor,
    GROUP: tl.constexpr,
    PLANE: tl.constexpr,
    EVEN: tl.constexpr,
) -> tl.tensor:
    if GROUP % 128 == 0:
        group = first // GROUP
    elif 128 % GROUP == 0:  # a run has whole groups
        group = first // 128 * (128 // GROUP) + PLANE * 32 // GROUP
    else:
        group = (first + PLANE * 32) // GROUP
    if not EVEN:  # the last run may end behind the last group
        group = tl.minimum(group, groups - 1)
    return tl.load(table + group * outputs + output)


@triton.jit
def load_terms(
    table: tl.tensor,
    output: tl.tensor,
    first: tl.tensor,
    outputs: tl.tensor,
    groups: tl.tensor,
    GROUP: tl.constexpr,
    EVEN: tl.constexpr,
    RUNS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Loads the entries of a `table` `[groups, outputs]` for a step's four planes; once for planes of one group."""
    PER: tl.constexpr = planes_of_scale(GROUP, RUNS)
    a = load_term(table, output, first, outputs, groups, GROUP, 0, EVEN)
    if PER == 4:
        return a, a, a, a
    else:
        c = load_term(table, output, first, outputs, groups, GROUP, 2, EVEN)
        if PER == 2:
            return a, a, c, c
        else:
            b = load_term(table, output, first, outputs, groups, GROUP, 1, EVEN)
            return a, b, c, load_term(table, output, first, outputs, groups, GROUP, 3, EVEN)


@triton.jit
def add_planes(
    total: tl.tensor,
    words: tl.tensor,
    x: tl.tensor,
    scales: tl.tensor,
    offsets: tl.tensor,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    SCALED: tl.constexpr,
    OFFSETS: tl.constexpr,
    RUNS: tl.constexpr,
) -> tl.tensor:
    """Adds a step's product to a `total` `[TILE, ROWS]`; `x`, `scales` and `offsets` are tuples of the four planes."""
    PER: tl.constexpr = planes_of_scale(GROUP, RUNS)
    ZEROS: tl.constexpr = OFFSETS and offsets[0].dtype == tl.int16
    if not SCALED:
        for plane in tl.static_range(4):
            values = plane_values(words, offsets[plane], x[plane], plane, KIND, ZEROS)
            total = tl.dot(values, x[plane], total, input_precision="ieee")
    elif total.shape[1] <= MAX_BEHIND_ROWS:
        for first in tl.static_range(0, 4, PER):
            part = tl.zeros(total.shape, tl.float32)
            for plane in tl.static_range(first, first + PER):
                values = plane_values(words, offsets[first], x[plane], plane, KIND, ZEROS)
                part = tl.dot(values, x[plane], part, input_precision="ieee")
            total += part * scales[first].to(tl.float32)[:, None]
            if OFFSETS and not ZEROS:
                sums = tl.zeros(total.shape, tl.float32)
                for plane in tl.static_range(first, first + PER):
                    ones = tl.full(words.shape, 1.0, x[plane].dtype)
                    sums = tl.dot(ones, x[plane], sums, input_precision="ieee")
                total += sums * offsets[first].to(tl.float32)[:, None]
    else:
        for plane in tl.static_range(4):
            values = plane_values(words, offsets[plane], x[plane], plane, KIND, ZEROS)
            weight = values.to(tl.float32) * scales[plane].to(tl.float32)[:, None]
            if OFFSETS and not ZEROS:
                weight += offsets[plane].to(tl.float32)[:, None]
            total = tl.dot(weight.to(x[plane].dtype), x[plane], total, input_precision="ieee")
    return total


@triton.jit
def products(
    x: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    offsets: tl.tensor,
    columns: tl.tensor,
    other_columns: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    inputs: tl.tensor,
    outputs: tl.tensor,
    runs: tl.tensor,
    groups: tl.tensor,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    SCALED: tl.constexpr,
    OFFSETS: tl.constexpr,
    EVEN: tl.constexpr,
    RUNS: tl.constexpr,
    AHEAD: tl.constexpr,
    TWO: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Multiplies rows by the outputs `columns` and, if `TWO`, by `other_columns`, both `[TILE]`.

    `x` `[ROWS]` points to the first input of rows; steps are `first` to `end - 1`. Without scales the sums are of
    codes. Scales are loaded a step ahead if `AHEAD` (`loads_ahead`).
    """
    STEP: tl.constexpr = inputs_of_step(RUNS)
    total = tl.zeros([columns.shape[0], x.shape[0]], tl.float32)
    total_other = total
    next_scale = load_terms(scales, columns, first * STEP, outputs, groups, GROUP, EVEN, RUNS)
    next_offset, next_other_scale, next_other_offset = next_scale, next_scale, next_scale
    if OFFSETS:
        next_offset = load_terms(offsets, columns, first * STEP, outputs, groups, GROUP, EVEN, RUNS)
    if TWO:
        next_other_scale = load_terms(scales, other_columns, first * STEP, outputs, groups, GROUP, EVEN, RUNS)
        if OFFSETS:
            next_other_offset = load_terms(offsets, other_columns, first * STEP, outputs, groups, GROUP, EVEN, RUNS)
    for step in range(first, end):
        first_input = step * STEP
        words = load_words(codes, columns, step * RUNS, outputs, runs, RUNS)
        planes = load_planes(x, first_input, inputs, EVEN, RUNS)
        scale, offset, other_scale, other_offset = next_scale, next_offset, next_other_scale, next_other_offset
        if SCALED:
            next_input = tl.minimum(step + 1, end - 1) * STEP if AHEAD else first_input
            next_scale = load_terms(scales, columns, next_input, outputs, groups, GROUP, EVEN, RUNS)
            if OFFSETS:
                next_offset = load_terms(offsets, columns, next_input, outputs, groups, GROUP, EVEN, RUNS)
            if TWO:
                next_other_scale = load_terms(scales, other_columns, next_input, outputs, groups, GROUP, EVEN, RUNS)
                if OFFSETS:
                    next_other_offset = load_terms(
                        offsets, other_columns, next_input, outputs, groups, GROUP, EVEN, RUNS
                    )
            if not AHEAD:
                scale, offset, other_scale, other_offset = next_scale, next_offset, next_other_scale, next_other_offset
        total = add_planes(total, words, planes, scale, offset, KIND, GROUP, SCALED, OFFSETS, RUNS)
        if TWO:
            words = load_words(codes, other_columns, step * RUNS, outputs, runs, RUNS)
            total_other = add_planes(
                total_other, words, planes, other_scale, other_offset, KIND, GROUP, SCALED, OFFSETS, RUNS
            )
    return total, total_other
