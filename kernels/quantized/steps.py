"""Multiplies by packed weights of 8 bits step by step: codes are dequantized in registers, for tensor cores.

A step has `RUNS` runs of each output of a tile (`packed.py`). All of its inputs are of one group or, with one run, each
half of them is: so a step has two vectors of scales at most. They are loaded one step ahead: they are too short for
the pipeline's copies, which bring the codes. Numbers are rounded to the format of x, as a dequantized weight's would
be; where an output has a single scale, codes are exact in it, and the scale multiplies a finished sum. Weights of 4
bits have their own steps (`four_bits.py`).

The tile of weights is the first operand, `[TILE, inputs] [inputs, ROWS]`: products of warp groups take that one from
registers, and few rows as the second one.
"""

import triton
import triton.language as tl

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
    """Loads what a `table` `[groups, outputs]` has for the two halves of the step from input `first` on, as fp32.

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
    here = begin + (own * (outputs * RUN_BYTES) + byte % RUN_BYTES)[None, :] + (output * RUN_BYTES)[:, None]
    if EVEN:
        return tl.load(here)
    else:
        return tl.load(here, mask=(run + own < runs)[None, :], other=0)


@triton.jit
def load_inputs(x: tl.tensor, first: tl.tensor, inputs: tl.tensor, EVEN: tl.constexpr, RUNS: tl.constexpr) -> tl.tensor:
    """Loads what a step's codes are multiplied by, `[32 RUNS, ROWS]`; `x` `[ROWS]` points to rows' first inputs."""
    place = first + tl.arange(0, RUNS * RUN_BYTES)
    here = x[None, :] + place[:, None]
    if EVEN:
        return tl.load(here)
    else:
        return tl.load(here, mask=(place < inputs)[:, None], other=0.0)


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
    if GROUP % in_step(RUNS) == 0:
        weight = scaled(codes, scale[:, None], offset[:, None], KIND, SCALED, OFFSETS)
        return tl.dot(weight.to(x.dtype), x, total, input_precision="ieee")
    else:
        first = (tl.arange(0, RUNS * RUN_BYTES) < RUN_BYTES // 2)[None, :]
        both = tl.where(first, scale[:, None], other_scale[:, None])
        weight = scaled(codes, both, tl.where(first, offset[:, None], other_offset[:, None]), KIND, SCALED, OFFSETS)
        return tl.dot(weight.to(x.dtype), x, total, input_precision="ieee")
