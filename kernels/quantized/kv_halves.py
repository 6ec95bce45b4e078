"""Converts the bytes of a quantized KV pool to fp16 operands of tensor-core products, exactly, and scales around them.

Every int8 and e4m3 number is an fp16 number. On sm_89 and later one instruction converts two e4m3 numbers; elsewhere
the bits of e4m3 are moved to their places in fp16, which gives 2^-8 of the value. An int8 number b is made as 2^10 +
128 + b, by its bits, minus 1152. Queries are fp16, too: a power of two, for all rows of a tile, brings the largest to
2^14 … 2^15. Numbers below 2^-28 of it lose digits, 2^-39 of it at most.

A product over positions takes two neighbouring positions of one dim in a register, which lie in different words of
memory. Where operands pass through registers, keys and values are loaded as words of two dims, and even and odd dims
are multiplied apart: two words of values then are two such registers (`by_pairs`). Bytes of keys would be in order, but
queries in the order of bytes cost moves in every turn.

Scales of values are the factors 2^l of shares: u_j = 2^(s_j + l_j - highest), so that the largest term of the sum is
near fp16's 1, however small the scales are; the softmax's total is the sum of u_j 2^-l_j.
"""

import triton
import triton.language as tl
from triton import knobs
from triton.language.target_info import cuda_capability_geq

from kernels.quantized.kv_bytes import INFINITE_VALUE, INT8_FORMAT, halves_by_bits
from kernels.tuning import Config

COMPILED = tl.constexpr(not knobs.runtime.interpret)
LOWEST_LOG = tl.constexpr(-80.0)
"""Scales below 2^-80 count as that: vectors of zeros have the least scale of all, whose inverse would swamp a total."""
TOP_EXPONENT, LOWEST_EXPONENT = tl.constexpr(14), tl.constexpr(40)
"""Exponent of the largest query in fp16, and the least biased exponent in fp32 that is brought there."""
WARP_THREADS, WARP_GROUP_ROWS = 32, 64
MIN_ROWS = 16
"""Rows from which warp groups multiply on Hopper, and of the smallest product of tensor cores."""
MAX_REGISTER_DIM = 128


@triton.constexpr_function
def conversion(kv_format: int, words: bool) -> str:
    """Returns assembly that makes four fp16 numbers of four bytes in `$2`.

    `$0` and `$1` have bytes (0, 1) and (2, 3); or of two words the lower bytes and the upper ones.
    """
    chosen = ("a", 0, 2), ("b", 1, 3)
    if not words:
        chosen = ("a", 0, 1), ("b", 2, 3)
    made = ""
    if kv_format == INT8_FORMAT.value:
        made += "xor.b32 x, $2, 0x80808080; mov.b32 c, 0x64646464;"
        for to, low, high in chosen:
            made += f"prmt.b32 {to}, x, c, {low | 4 << 4 | high << 8 | 4 << 12:#x};"
        made += "mov.b32 c, 0xe480e480; add.rn.f16x2 $0, a, c; add.rn.f16x2 $1, b, c;"
    elif unit_of(kv_format) == 1.0:
        made += "prmt.b32 x, $2, 0, 0x3120; mov.b32 {l, h}, x;" if words else "mov.b32 {l, h}, $2;"
        made += "cvt.rn.f16x2.e4m3x2 $0, l; cvt.rn.f16x2.e4m3x2 $1, h;"
    else:
        for to, low, high in chosen:
            made += f"prmt.b32 {to}, $2, 0, {4 | low << 4 | 4 << 8 | high << 12:#x};"
        for to, given in ("$0", "a"), ("$1", "b"):
            made += f"and.b32 c, {given}, 0x80008000; shr.b32 x, {given}, 1; lop3.b32 {to}, x, 0x3f803f80, c, 0xea;"
    return "{.reg .b32 a, b, c, x; .reg .b16 l, h;" + made + "}"


@triton.constexpr_function
def unit_of(kv_format: int) -> float:
    """Returns the value of a converted 1."""
    exact = kv_format == INT8_FORMAT.value or (COMPILED.value and cuda_capability_geq(8, 9))
    return 1.0 if exact else 256.0


@triton.constexpr_function
def by_groups(rows: int) -> bool:
    """Returns whether warp groups multiply."""
    return COMPILED.value and cuda_capability_geq(9) and not cuda_capability_geq(12) and rows >= WARP_GROUP_ROWS


@triton.constexpr_function
def by_pairs(kv_format: int, bits: int, rows: int, padded: int) -> bool:
    """Returns whether values are loaded as words: not for warp groups, which take them from shared memory."""
    return kv_format > 0 and bits == 16 and rows >= MIN_ROWS and padded >= 2 * MIN_ROWS and not by_groups(rows)


@triton.constexpr_function
def stay_as_given(rows: int, padded: int) -> bool:
    """Returns whether keys are converted to the queries' format instead.

    Warp groups take loaded queries from shared memory, but computed queries from registers, where wide heads do not fit
    beside the rest.
    """
    return by_groups(rows) and padded > MAX_REGISTER_DIM


def scale_copies(config: Config) -> int:
    """Returns how often scales of a tile are loaded: two or four columns, for a number of each thread.

    Triton keeps as many numbers as threads apart, and would load fewer numbers again in each thread that needs them, as
    all warps do. More columns take more registers than that.
    """
    return 2 if 2 * config.tiles["TILE"] >= WARP_THREADS * config.warps else 4


@triton.jit
def halves(found: tl.tensor, FORMAT: tl.constexpr) -> tl.tensor:
    """Converts uint8 to fp16, without scale and unit."""
    if COMPILED:
        asm: tl.constexpr = conversion(FORMAT, False)
        return tl.inline_asm_elementwise(asm, "=r,=r,r", [found], dtype=tl.float16, is_pure=True, pack=4)
    else:
        return halves_by_bits(found, FORMAT)


@triton.jit
def halves_of_words(words: tl.tensor, FORMAT: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Converts the lower bytes of words of 16 bits, and the upper ones, to fp16, without scale and unit."""
    if COMPILED:
        asm: tl.constexpr = conversion(FORMAT, True)
        kinds: tl.constexpr = (tl.float16, tl.float16)
        lower, upper = tl.inline_asm_elementwise(asm, "=r,=r,r", [words], dtype=kinds, is_pure=True, pack=2)
        return lower, upper
    else:
        bits = words.to(tl.uint16, bitcast=True)
        return halves_by_bits((bits & 255).to(tl.uint8), FORMAT), halves_by_bits((bits >> 8).to(tl.uint8), FORMAT)


@triton.jit
def scaled_queries(queries: tl.tensor, FORMAT: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Returns the queries as operands of the product, and the factor of the products."""
    if FORMAT == 0 or queries.dtype == tl.float32 or stay_as_given(queries.shape[0], queries.shape[1]):
        return queries, tl.full([], 1.0, tl.float32)
    else:
        numbers = queries.to(tl.float32)
        sizes = tl.abs(numbers)
        largest = tl.max(tl.max(tl.where(sizes < INFINITE_VALUE, sizes, 0.0), 1), 0)
        exponent = tl.maximum(largest.to(tl.int32, bitcast=True) >> 23, LOWEST_EXPONENT)
        scale = ((-exponent + (254 + TOP_EXPONENT)) << 23).to(tl.float32, bitcast=True)
        unit = ((exponent - TOP_EXPONENT) << 23).to(tl.float32, bitcast=True)
        return (numbers * scale).to(tl.float16), unit


@triton.jit
def scales_of_tile(
    key_scales: tl.tensor,  # [TILE] addresses of the keys' scales
    valid: tl.tensor,  # [TILE] which of them are read
    key_unit: tl.tensor,
    FORMAT: tl.constexpr,
    TO_VALUES: tl.constexpr,  # from a key's scale to its value's
    COPIES: tl.constexpr,  # see `scale_copies`
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Returns keys' scales times `key_unit`, base 2 logarithms of values' scales, and the inverses of these scales."""
    of_value = tl.arange(0, COPIES)[None, :] == 1
    addresses = key_scales[:, None] + tl.where(of_value, TO_VALUES, 0)
    scales = tl.load(addresses, mask=valid[:, None], other=1.0).to(tl.float32)
    logs = log2(scales * unit_of(FORMAT))
    logs = tl.where(logs < LOWEST_LOG, LOWEST_LOG, logs)  # NaN stays
    logs = tl.sum(tl.where(of_value, logs, 0.0), 1)
    first = tl.arange(0, COPIES)[None, :] == 0
    return tl.sum(tl.where(first, scales * key_unit, 0.0), 1), logs, tl.exp2(-logs)


@triton.jit
def log2(numbers: tl.tensor) -> tl.tensor:
    """Returns base 2 logarithms by the instruction of the device; Triton's are a polynomial."""
    if COMPILED:
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [numbers], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.log2(numbers)
