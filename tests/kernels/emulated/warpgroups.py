"""Hopper's products of a warp group, `wgmma`: asynchronous, with factors in shared memory.

A warp computes its own 16 of the 64 rows. A product is computed when the warp waits for its group, so shared memory
that changes before, and results that are read before, show.

Place of a factor's number (row, k) in shared memory (PTX ISA, section on the matrix descriptor of `wgmma`), with the
start s, the leading offset L, the stride offset S, and w bytes in a swizzled row:

    s + (row div 8) S + (row mod 8) w + k's bytes                                        if k is contiguous
    s + (row's bytes div w) L + (row's bytes mod w) + (k div 8) S + (k mod 8) w          if rows are contiguous

Bits 4 to 6 of this address are then changed by its bits 7 to 9.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.kernels.emulated.matrices import KINDS, add_product, left_factor, registers, width_of
from tests.kernels.emulated.memory import Places
from tests.kernels.emulated.number_formats import Array, halves
from tests.kernels.emulated.ptx import Immediate, Instruction, Vector
from tests.kernels.emulated.warp import LANES, Lanes, Warp

SWIZZLES: dict[int, tuple[int, int]] = {1: (128, 7), 2: (64, 3), 3: (32, 1)}
"""By a descriptor's mode: bytes of a swizzled row; the mask of the bits of address >> 7 that change address >> 4."""
ROWS_OF_A_WARP = 16


@dataclass
class Product:
    """A product under way in some lanes of a warp."""

    instruction: Instruction
    lanes: Places
    groups: Places
    left: Array | None
    """The first factor, where it is in registers."""
    descriptors: list[Array]
    adds: Array
    """Whether each warp adds to the result, or replaces it."""


def issue(warp: Warp, instruction: Instruction, lanes: Lanes) -> None:
    """`wgmma` with its fence, commit and wait."""
    opcode, operands = instruction.opcode, instruction.operands
    if opcode[1] == "commit_group":
        warp.product_groups[lanes] += 1
    elif opcode[1] == "wait_group":
        assert isinstance(operands[0], Immediate)
        _finish(warp, lanes, operands[0].bits)
    elif opcode[1] == "mma_async":
        whole = warp.whole(lanes).reshape(-1)
        one, other, adds = operands[1:4]
        left = left_factor(warp, one.parts, _kinds(instruction)[1], lanes) if isinstance(one, Vector) else None
        named = (other,) if left is not None else (one, other)
        descriptors = [warp.read_bits(each, 64, lanes)[::LANES].copy() for each in named]
        added = warp.read_bits(adds, 1, lanes)[::LANES].copy()
        product = Product(instruction, whole, warp.product_groups[lanes].copy(), left, descriptors, added)
        _right(warp, product)  # what it reads has to be there now
        warp.products.append(product)


def finish_results(warp: Warp, instruction: Instruction) -> None:
    """Computes all products if the instruction names a result of one: there the assembler puts a wait (its C7517)."""
    named = {part for operand in instruction.operands for part in registers(operand)}
    if any(not named.isdisjoint(registers(each.instruction.operands[0])) for each in warp.products):
        warp.product_groups += 1
        _finish(warp, slice(None), 0)


def _finish(warp: Warp, lanes: Lanes, allowed: int) -> None:
    """Computes the products of these lanes, but those of the last `allowed` groups."""
    waits = np.zeros(len(warp.at), bool)
    waits[lanes] = True
    left: list[Any] = []
    for product in warp.products:
        done = waits[product.lanes] & (product.groups < warp.product_groups[product.lanes] - allowed)
        if done.any():
            _compute(warp, product, done)
        if not done.all():
            left.append(_chosen(product, ~done))
    warp.products[:] = left


def _chosen(product: Product, lanes: Array) -> Product:
    warps = lanes[::LANES]
    return Product(
        product.instruction,
        product.lanes[lanes],
        product.groups[lanes],
        None if product.left is None else product.left[warps],
        [each[warps] for each in product.descriptors],
        product.adds[warps],
    )


def _compute(warp: Warp, product: Product, done: Array) -> None:
    chosen = _chosen(product, done)
    found = _left(warp, chosen) @ _right(warp, chosen)
    result, kind = registers(product.instruction.operands[0]), _kinds(product.instruction)[0]
    for adds in np.unique(chosen.adds):
        part = chosen.adds == adds
        add_product(warp, found[part], result, result if adds else (), kind, chosen.lanes[np.repeat(part, LANES)])


def _kinds(instruction: Instruction) -> tuple[str, ...]:
    return tuple(each for each in instruction.opcode if each in KINDS)


def _sizes(instruction: Instruction) -> tuple[int, int]:
    """Returns the columns of the result and the numbers that are summed: `m64n16k16` has 16 of both."""
    shape = next(each for each in instruction.opcode if each.startswith("m64n"))
    columns, _, depth = shape.removeprefix("m64n").partition("k")
    return int(columns), int(depth)


def _left(warp: Warp, product: Product) -> Array:
    if product.left is not None:
        return product.left
    rows = ROWS_OF_A_WARP * (warp.number % 4) + np.arange(ROWS_OF_A_WARP)
    return _factor(warp, product, product.descriptors[0], rows, _transposed(product.instruction, 0))


def _right(warp: Warp, product: Product) -> Array:
    """Returns [warps, depth, columns]."""
    columns = np.arange(_sizes(product.instruction)[0])
    found = _factor(warp, product, product.descriptors[-1], columns, _transposed(product.instruction, 1))
    return found.transpose(0, 2, 1)


def _transposed(instruction: Instruction, factor: int) -> bool:
    """Returns whether rows of a factor are contiguous, not the numbers that are summed. Only 16-bit types say so."""
    if width_of(_kinds(instruction)[1]) == 8:
        return False
    flag = instruction.operands[-2 if factor == 0 else -1]
    assert isinstance(flag, Immediate)
    return bool(flag.bits)


def _factor(warp: Warp, product: Product, descriptors: Array, rows: Places, transposed: bool) -> Array:
    """Returns [warps, rows, depth] from shared memory."""
    kind, depth = _kinds(product.instruction)[1], _sizes(product.instruction)[1]
    size = width_of(kind) // 8
    fields = descriptors.astype(np.int64)[:, None, None]
    start, leading, stride = ((fields >> shift & 0x3FFF) << 4 for shift in (0, 16, 32))
    modes = set((descriptors >> np.uint64(62)).tolist())
    row, k = rows[None, :, None], np.arange(depth)[None, None, :]
    mode = modes.pop()
    assert not modes, "one swizzle for all"
    if mode == 0:
        assert not transposed, "no kernel has it"
        at = start + row // 8 * stride + row % 8 * 16 + k * size // 16 * leading + k * size % 16
    else:
        width, mask = SWIZZLES[mode]
        if transposed:
            at = start + row * size // width * leading + k // 8 * stride + k % 8 * width + row * size % width
        else:
            at = start + row // 8 * stride + row % 8 * width + k * size
        at = at ^ ((at >> 7 & mask) << 4)
    at = np.broadcast_to(at, (len(descriptors), len(rows), depth))
    blocks = np.repeat(product.lanes[::LANES] // LANES, len(rows) * depth)
    raw = warp.shared.load(blocks, at.reshape(-1), size, warp.number)
    return halves(raw.reshape((*at.shape, size)).view(f"u{size}")[..., 0], kind)[..., 0].astype(np.float64)
