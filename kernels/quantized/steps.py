"""Multiplies by packed weights of 8 bits step by step: codes are dequantized in registers, for tensor cores.

A step has `RUNS` runs of each output of a tile (`packed.py`). All of its inputs are of one group or, with one run, each
half of them is: so a step has two vectors of scales at most. They are loaded one step ahead: they are too short for
the pipeline's copies, which bring the codes. Codes are exact in the format of x: where an output has a single scale,
it multiplies a finished sum, and with few rows a step's scale multiplies the step's sums. Else weights are rounded to
the format of x, as a dequantized weight's are. Weights of 4 bits have their own steps (`four_bits.py`).

The tile of weights is the first operand, `[TILE, inputs] [inputs, ROWS]`: products of warp groups take that one from
registers, and few rows as the second one.
"""

import triton
import triton.language as tl

from kernels.quantized.four_bits import COMPILED, MAX_BEHIND_ROWS

RUN_BYTES = tl.constexpr(32)
INT8_OFFSET = tl.constexpr(8388608.0 + 128)
"""2^23, whose last digit is 1, plus int8's code of 0 after its sign is flipped."""
FP8_FACTOR = tl.constexpr(2.0**120)
"""Power of two that maps fp32's exponents to fp8's exponents."""


@triton.constexpr_function
def in_step(runs: int) -> int:
    return runs * 32


@triton.jit
def dequantized(codes: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """Dequantizes codes to fp32 exactly, by bit operations: GPUs convert slowly, and some have no fp8."""
    bits = codes.to(tl.int32)
    if KIND == "int8":
        return (bits ^ 0x4B000080).to(tl.float32, bitcast=True) - INT8_OFFSET
    else:  # sign, 4 bits of exponent, 3 of mantissa: the shift copies the sign into the exponent's head
        tl.static_assert(KIND == "fp8")
        return (((bits << 24) >> 4) & -0x78000001).to(tl.float32, bitcast=True) * FP8_FACTOR


@triton.constexpr_function
def fp8_conversion(short: bool) -> str:
    """Returns assembly that makes two numbers of two fp8 codes in 16 bits: fp16 if `short`, else bf16.

    A code moves to the lower byte of a number, and its sign to all bits of the upper byte: then one shift brings all
    digits to their places, and leaves the sign at the head.
    """
    left, mask, factor = (7, 0xBF80BF80, 0x5C005C00) if short else (4, 0x87F087F0, 0x7B807B80)
    made = f"cvt.u32.u16 a, $1; prmt.b32 a, a, 0, 0x9180; shl.b32 a, a, {left}; and.b32 a, a, {mask:#x};"
    made += f"mov.b32 b, {factor:#x}; mov.b32 c, 0x80008000; fma.rn.{'f16x2' if short else 'bf16x2'} $0, a, b, c;"
    return "{.reg .b32 a, b, c;" + made + "}"


@triton.jit
def values(codes: tl.tensor, like: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """Converts codes, exactly, to the format of `like`."""
    if COMPILED and KIND == "fp8" and like.dtype != tl.float32:
        asm: tl.constexpr = fp8_conversion(like.dtype == tl.float16)
        return tl.inline_asm_elementwise(asm, "=r,h", [codes], dtype=like.dtype, is_pure=True, pack=2)
    else:
        return dequantized(codes, KIND).to(like.dtype)


@triton.jit
def load_pair(
    table: tl.tensor,
    output: tl.tensor,
    first: tl.tensor,
    outputs: tl.tensor,
    groups: tl.tensor,
    GROUP: tl.constexpr,
    RUNS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Loads the fp32 entries of a `table` `[groups, outputs]` for both halves of the step from input `first` on.

    Here and below, the number of `outputs` is int64, for tables are large.
    """
    STEP: tl.constexpr = in_step(RUNS)
    group = tl.minimum(first // GROUP, groups - 1)
    one = tl.load(table + group * outputs + output).to(tl.float32)
    if GROUP % STEP == 0:
        return one, one
    else:
        tl.static_assert(RUNS == 1)
        group = tl.minimum((first + STEP // 2) // GROUP, groups - 1)
        return one, tl.load(table + group * outputs + output).to(tl.float32)


@triton.jit
def load_terms(
    scales: tl.tensor,
    offsets: tl.tensor,
    output: tl.tensor,
    first: tl.tensor,
    outputs: tl.tensor,
    groups: tl.tensor,
    GROUP: tl.constexpr,
    OFFSETS: tl.constexpr,
    RUNS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Loads both halves' scales and offsets; without offsets the latter are arbitrary."""
    scale, other = load_pair(scales, output, first, outputs, groups, GROUP, RUNS)
    if OFFSETS:
        offset, other_offset = load_pair(offsets, output, first, outputs, groups, GROUP, RUNS)
        return scale, other, offset, other_offset
    else:
        return scale, other, scale, other


@triton.jit
def load_codes(
    codes: tl.tensor,
    output: tl.tensor,
    run: tl.tensor,
    outputs: tl.tensor,
    runs: tl.tensor,
    EVEN: tl.constexpr,
    RUNS: tl.constexpr,
) -> tl.tensor:
    """Loads the codes `[TILE, 32 RUNS]` of the step whose first run is `run`."""
    byte = tl.arange(0, RUNS * RUN_BYTES)
    own = byte // RUN_BYTES
    begin = codes + run * (outputs * RUN_BYTES)
    addresses = begin + (own * (outputs * RUN_BYTES) + byte % RUN_BYTES)[None, :] + (output * RUN_BYTES)[:, None]
    if EVEN:
        return tl.load(addresses)
    else:
        return tl.load(addresses, mask=(run + own < runs)[None, :], other=0)


@triton.jit
def load_inputs(x: tl.tensor, first: tl.tensor, inputs: tl.tensor, EVEN: tl.constexpr, RUNS: tl.constexpr) -> tl.tensor:
    """Loads the inputs of a step, `[32 RUNS, ROWS]`; `x` `[ROWS]` points to the rows' first inputs."""
    place = first + tl.arange(0, RUNS * RUN_BYTES)
    addresses = x[None, :] + place[:, None]
    if EVEN:
        return tl.load(addresses)
    else:
        return tl.load(addresses, mask=(place < inputs)[:, None], other=0.0)


@triton.jit
def scaled(
    codes: tl.tensor,
    scale: tl.tensor,
    offset: tl.tensor,
    KIND: tl.constexpr,
    SCALED: tl.constexpr,
    OFFSETS: tl.constexpr,
) -> tl.tensor:
    """Makes fp32 weights of codes; scale and offset are `[TILE, 1]`, or as large as the codes."""
    found = dequantized(codes, KIND)
    if SCALED:
        found *= scale
    if OFFSETS:
        found += offset
    return found


@triton.jit
def add_step(
    total: tl.tensor,
    codes: tl.tensor,
    x: tl.tensor,
    scale: tl.tensor,
    other_scale: tl.tensor,
    offset: tl.tensor,
    other_offset: tl.tensor,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    SCALED: tl.constexpr,
    OFFSETS: tl.constexpr,
    RUNS: tl.constexpr,
) -> tl.tensor:
    """Adds a step's product to a `total` `[TILE, ROWS]`."""
    if not SCALED:
        return tl.dot(values(codes, x, KIND), x, total, input_precision="ieee")
    elif GROUP % in_step(RUNS) == 0 and not OFFSETS and total.shape[1] <= MAX_BEHIND_ROWS:
        part = tl.dot(values(codes, x, KIND), x, tl.zeros(total.shape, tl.float32), input_precision="ieee")
        return total + part * scale[:, None]
    elif GROUP % in_step(RUNS) == 0:
        weight = scaled(codes, scale[:, None], offset[:, None], KIND, SCALED, OFFSETS)
        return tl.dot(weight.to(x.dtype), x, total, input_precision="ieee")
    else:
        first = (tl.arange(0, RUNS * RUN_BYTES) < RUN_BYTES // 2)[None, :]
        both = tl.where(first, scale[:, None], other_scale[:, None])
        weight = scaled(codes, both, tl.where(first, offset[:, None], other_offset[:, None]), KIND, SCALED, OFFSETS)
        return tl.dot(weight.to(x.dtype), x, total, input_precision="ieee")
