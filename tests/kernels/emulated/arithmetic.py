"""Arithmetic, conversions and moves of PTX in some lanes of a warp.

Approximate operators (`ex2.approx`, `div.full`) are computed exactly: a kernel's tolerance has to hold for their error,
which NVIDIA states as a few units in the last place.
"""

from collections.abc import Callable

import numpy as np

from tests.kernels.emulated.number_formats import FP8, SIGNED, UNSIGNED, Array, bits_of, halves, packed
from tests.kernels.emulated.ptx import Immediate, Instruction, Vector
from tests.kernels.emulated.warp import Lanes, Warp

Operation = Callable[[Warp, Instruction, Lanes], None]
PACKED = {"bf16x2": "bf16", "f16x2": "f16"}


def _wide(values: Array) -> Array:
    """Returns values in a type that holds a product of two of them, and a sum exactly enough to be rounded once."""
    if values.dtype.kind == "f":
        return values.astype(np.float64)
    return values


def elementwise(function: Callable[..., Array]) -> Operation:
    """Makes the operation that is a function of numbers of the instruction's last type; its result is rounded once."""

    def operation(warp: Warp, instruction: Instruction, lanes: Lanes) -> None:
        kind, (result, *sources) = instruction.opcode[-1], instruction.operands
        if kind in PACKED:
            half = PACKED[kind]
            values = [halves(warp.read_bits(each, 32, lanes), half) for each in sources]
            found = function(*(_wide(each) for each in values)).astype(np.float32)
            warp.write(result, packed(found, half), "b32", lanes)
            return
        found = function(*(_wide(warp.read(each, kind, lanes)) for each in sources))
        if "ftz" in instruction.opcode and kind == "f32":
            found = np.where(np.abs(found) < np.finfo(np.float32).tiny, 0.0, found)
        if "sat" in instruction.opcode:
            found = np.clip(np.nan_to_num(found, nan=0.0), 0, 1)
        warp.write(result, found.astype(np.float32) if kind in ("bf16", "f16") else found, kind, lanes)

    return operation


def quotient(one: Array, other: Array) -> Array:
    if one.dtype.kind == "f":
        return np.asarray(one / other)
    whole = np.abs(one.astype(object)) // np.maximum(np.abs(other.astype(object)), 1)
    return np.asarray(np.where((one < 0) == (other < 0), whole, -whole), dtype=one.dtype)


def least(one: Array, other: Array) -> Array:
    return np.fmin(one, other) if one.dtype.kind == "f" else np.minimum(one, other)


def largest(one: Array, other: Array) -> Array:
    return np.fmax(one, other) if one.dtype.kind == "f" else np.maximum(one, other)


def multiply(warp: Warp, instruction: Instruction, lanes: Lanes) -> None:
    """`mul` and `mad` of integers may keep the upper half or both; of floats they are elementwise."""
    opcode, kind = instruction.opcode, instruction.opcode[-1]
    added = opcode[0] == "mad"
    if kind[0] == "f" or kind in ("bf16", *PACKED):
        elementwise(product_and_sum if added else np.multiply)(warp, instruction, lanes)
        return
    result, *sources = instruction.operands
    width = bits_of(kind)
    one, other = (warp.read(each, kind, lanes) for each in sources[:2])
    if "wide" in opcode:
        kind = f"{kind[0]}{2 * width}"
        wide = (SIGNED if kind[0] == "s" else UNSIGNED)[2 * width]
        found = one.astype(wide) * other.astype(wide)
    elif "hi" in opcode:
        found = ((one.astype(object) * other.astype(object)) >> width).astype(one.dtype)
    else:
        found = one * other
    warp.write(result, found + warp.read(sources[2], kind, lanes) if added else found, kind, lanes)


def product_and_sum(one: Array, other: Array, added: Array) -> Array:
    return one * other + added


def shift(warp: Warp, instruction: Instruction, lanes: Lanes) -> None:
    """A shift by the width or more leaves 0, or the sign."""
    kind, (result, source, by) = instruction.opcode[-1], instruction.operands
    values, width = warp.read(source, kind, lanes), bits_of(kind)
    count = warp.read_bits(by, 32, lanes)
    inside = np.minimum(count, width - 1).astype(values.dtype)
    found = values << inside if instruction.opcode[0] == "shl" else values >> inside
    warp.write(result, found if kind[0] == "s" else np.where(count < width, found, 0), kind, lanes)


def funnel_shift(warp: Warp, instruction: Instruction, lanes: Lanes) -> None:
    """`shf`: the words (upper, lower) shifted together; `.l` returns the upper word of the result, `.r` the lower."""
    result, lower, upper, by = instruction.operands
    both = (warp.read_bits(upper, 64, lanes) << np.uint64(32)) | warp.read_bits(lower, 64, lanes)
    count = warp.read_bits(by, 64, lanes)
    count = np.minimum(count, 32) if "clamp" in instruction.opcode else count & np.uint64(31)
    left = instruction.opcode[1] == "l"
    found = (both << count) >> np.uint64(32) if left else both >> count
    warp.write(result, found & np.uint64(0xFFFFFFFF), "b32", lanes)


def extract_bits(warp: Warp, instruction: Instruction, lanes: Lanes) -> None:
    """`bfe`: `count` bits from `start` on, of a signed type with their sign."""
    kind, (result, source, start, count) = instruction.opcode[-1], instruction.operands
    width = bits_of(kind)
    values = warp.read(source, kind, lanes)
    first, number = (warp.read_bits(each, 32, lanes).astype(np.int64) & 255 for each in (start, count))
    above = width - np.minimum(first + number, width)
    raised = values.view(UNSIGNED[width]) << above.astype(UNSIGNED[width])
    kept = raised.view(values.dtype) >> np.maximum(above + np.minimum(first, width - 1), 0).astype(values.dtype)
    warp.write(result, np.where(number == 0, 0, kept), kind, lanes)


def permute_bytes(warp: Warp, instruction: Instruction, lanes: Lanes) -> None:
    """`prmt`: each byte of the result is one of eight, or eight times its sign."""
    result, *sources = instruction.operands
    one, other, chosen = (warp.read_bits(each, 32, lanes) for each in sources)
    eight = np.concatenate([halves(one, "b8"), halves(other, "b8")], axis=1)
    selectors = (chosen[:, None] >> np.arange(0, 16, 4, dtype=np.uint32)) & np.uint32(15)
    found = np.take_along_axis(eight, (selectors & 7).astype(np.int64), 1)
    signs = np.where(found & 0x80, 255, 0)
    warp.write(result, packed(np.where(selectors & 8, signs, found).astype(np.uint8), "b8"), "b32", lanes)


def three_inputs(warp: Warp, instruction: Instruction, lanes: Lanes) -> None:
    """`lop3`: any function of three bits, by its table."""
    result, *sources, table = instruction.operands
    assert isinstance(table, Immediate)
    one, two, three = (warp.read_bits(each, 32, lanes) for each in sources)
    found = np.zeros_like(one)
    for row in range(8):
        if table.bits >> row & 1:
            found |= (one if row & 4 else ~one) & (two if row & 2 else ~two) & (three if row & 1 else ~three)
    warp.write(result, found, "b32", lanes)


def move(warp: Warp, instruction: Instruction, lanes: Lanes) -> None:
    """`mov`, also of a register into parts, and of parts into a register."""
    kind, (result, source) = instruction.opcode[-1], instruction.operands
    width = bits_of(kind)
    if isinstance(result, Vector):
        part = width // len(result.parts)
        values = halves(warp.read_bits(source, width, lanes), f"b{part}")
        for place, each in enumerate(result.parts):
            warp.write(each, values[:, place].copy(), f"b{part}", lanes)
    elif isinstance(source, Vector):
        part = width // len(source.parts)
        values = np.stack([warp.read_bits(each, part, lanes) for each in source.parts], axis=1)
        warp.write(result, packed(values, f"b{part}"), f"b{width}", lanes)
    else:
        warp.write(result, warp.read_bits(source, width, lanes), "pred" if width == 1 else f"b{width}", lanes)


def convert(warp: Warp, instruction: Instruction, lanes: Lanes) -> None:
    opcode, (result, *sources) = instruction.opcode, instruction.operands
    into, given = opcode[-2], opcode[-1]
    if into.endswith("x2"):  # two numbers into one register, the first into its upper half
        if len(sources) == 2:
            pair = np.stack([warp.read(each, given, lanes) for each in reversed(sources)], axis=1)
        else:
            pair = halves(warp.read_bits(sources[0], bits_of_packed(given), lanes), given.removesuffix("x2"))
        if "relu" in opcode:
            pair = np.maximum(pair, 0)
        half = into.removesuffix("x2")
        values = packed(pair.astype(np.float32), half)
        warp.write(result, values, f"b{values.dtype.itemsize * 8}", lanes)
        return
    values = warp.read(sources[0], given, lanes)
    if into[0] in "su" and values.dtype.kind == "f":
        rounding = {"rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
        chosen = next((rounding[each] for each in opcode if each in rounding), np.rint)
        ends = np.iinfo((SIGNED if into[0] == "s" else UNSIGNED)[bits_of(into)])
        values = np.clip(np.nan_to_num(chosen(values.astype(np.float64))), ends.min, ends.max)
        values = values.astype(object) if bits_of(into) == 64 else values.astype(np.int64)
        warp.write(result, values.astype((SIGNED if into[0] == "s" else UNSIGNED)[bits_of(into)]), into, lanes)
        return
    if into[0] in "su" and "sat" in opcode:
        ends = np.iinfo((SIGNED if into[0] == "s" else UNSIGNED)[bits_of(into)])
        values = np.clip(values.astype(np.int64), ends.min, ends.max)
    if into == "f32" and given in ("s64", "u64", "f64", "s32", "u32"):
        values = values.astype(np.float32)
    if values.dtype.kind in "iu" and into in ("f16", "bf16"):
        values = values.astype(np.float32)
    rounded = next((each for each in opcode if each in ("rni", "rzi", "rmi", "rpi")), None)
    if rounded is not None and values.dtype.kind == "f":
        values = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[rounded](values)
    if into == given == "f32" and "sat" in opcode:
        values = np.clip(values, 0, 1)
    warp.write(result, values, into, lanes)


def bits_of_packed(kind: str) -> int:
    return 16 if kind.removesuffix("x2") in FP8 else 32


UNORDERED = {"equ", "neu", "ltu", "leu", "gtu", "geu"}
UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal
}  # fmt: skip
COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


def compare(warp: Warp, instruction: Instruction, lanes: Lanes) -> None:
    opcode, (result, *sources) = instruction.opcode, instruction.operands
    name, kind = opcode[1], opcode[-1]
    if kind in PACKED:
        one, other = (halves(warp.read_bits(each, 32, lanes), PACKED[kind]) for each in sources[:2])
        assert isinstance(result, Vector)
        found = _compared(name, one, other)
        for place, part in enumerate(result.parts):
            warp.write(part, found[:, place], "pred", lanes)
        return
    one, other = (warp.read(each, kind, lanes) for each in sources[:2])
    holds = _compared(name, one, other)
    combined = next((each for each in opcode[2:-1] if each in COMBINE), None)
    if combined is not None:
        holds = COMBINE[combined](holds, warp.read(sources[2], "pred", lanes))
    first, *second = result.parts if isinstance(result, Vector) else (result,)
    warp.write(first, holds, "pred", lanes)
    for each in second:
        warp.write(each, ~holds, "pred", lanes)


def _compared(name: str, one: Array, other: Array) -> Array:
    if one.dtype.kind != "f":
        return COMPARE[UNSIGNED_NAMES.get(name, name)](one, other)
    strange = np.isnan(one) | np.isnan(other)
    if name in ("nan", "num"):
        return strange if name == "nan" else ~strange
    if name in UNORDERED:
        return COMPARE[name[:-1]](one, other) | strange
    return COMPARE[name](one, other) & ~strange


def select(warp: Warp, instruction: Instruction, lanes: Lanes) -> None:
    result, one, other, chosen = instruction.operands
    width = bits_of(instruction.opcode[-1])
    first, second = (warp.read_bits(each, width, lanes) for each in (one, other))
    warp.write(result, np.where(warp.read(chosen, "pred", lanes), first, second), f"b{width}", lanes)


def count_bits(values: Array) -> Array:
    return np.asarray(
        np.unpackbits(np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1), axis=1).sum(axis=1)
    )


def leading_zeros(values: Array) -> Array:
    return np.array([values.dtype.itemsize * 8 - int(each).bit_length() for each in values], np.uint32)


def into_word(function: Callable[[Array], Array]) -> Operation:
    def operation(warp: Warp, instruction: Instruction, lanes: Lanes) -> None:
        result, source = instruction.operands
        found = function(warp.read_bits(source, bits_of(instruction.opcode[-1]), lanes))
        warp.write(result, found.astype(np.uint32), "b32", lanes)

    return operation


def generic_address(warp: Warp, instruction: Instruction, lanes: Lanes) -> None:
    result, source = instruction.operands
    warp.write(result, warp.read_bits(source, 64, lanes), "b64", lanes)
