"""Tensor-core instructions of a warp: `mma.sync`, `ldmatrix`, `stmatrix`.

Layouts: PTX ISA, section on matrix fragments.
"""

import numpy as np

from tests.kernels.emulated.number_formats import Array, halves
from tests.kernels.emulated.ptx import Instruction, Operand, Vector
from tests.kernels.emulated.warp import LANES, Lanes, Warp

LANE = np.arange(LANES)
GROUP, IN_GROUP = LANE // 4, LANE % 4
"""A lane's row of a fragment, and its place within the row."""
KINDS = ("bf16", "f16", "f32", "s32", "s8", "u8", "e4m3", "e5m2")


def registers(operand: Operand) -> tuple[Operand, ...]:
    return operand.parts if isinstance(operand, Vector) else (operand,)


def load(warp: Warp, instruction: Instruction, lanes: Lanes) -> None:
    """`ldmatrix`: each lane names a row of 16 bytes; lane i gets the words i mod 4 of the rows i div 4."""
    whole = warp.whole(lanes)
    result, source = instruction.operands
    addresses = warp.address(source, 32, lanes).reshape(-1, LANES)
    blocks = whole[:, 0] // LANES
    for number, register in enumerate(registers(result)):
        rows = addresses[:, 8 * number : 8 * number + 8]
        found = warp.shared.load(np.repeat(blocks, 8), rows.reshape(-1), 16, warp.number)
        matrix = np.ascontiguousarray(found).view(np.uint16).reshape(-1, 8, 8)
        if "trans" in instruction.opcode:
            matrix = np.ascontiguousarray(matrix.transpose(0, 2, 1))
        warp.write(register, matrix.reshape(-1, LANES, 2).view(np.uint32).reshape(-1), "b32", lanes)


def multiply(warp: Warp, instruction: Instruction, lanes: Lanes) -> None:
    """`mma.sync` of 16 x 8 results: products are summed exactly, and rounded once to the sum's type."""
    warp.whole(lanes)
    opcode = instruction.opcode
    into, first, second, *_ = (each for each in opcode[4:] if each in KINDS)
    if opcode[3] not in ("m16n8k16", "m16n8k32") or into not in ("f32", "s32"):
        raise NotImplementedError(instruction.text)
    result, one, other, added = (registers(each) for each in instruction.operands[:4])
    right = np.zeros((len(warp.at[lanes]) // LANES, int(opcode[3].rpartition("k")[2]), 8))
    for number, register in enumerate(other):
        values = _fragment(warp, register, second, lanes)
        each = values.shape[-1]
        for place in range(each):
            right[:, IN_GROUP * each + place + 4 * each * number, GROUP] = values[..., place]
    product = left_factor(warp, one, first, lanes) @ right
    add_product(warp, product, result, added, into, lanes)


def left_factor(warp: Warp, one: tuple[Operand, ...], kind: str, lanes: Lanes) -> Array:
    """Returns the first factor of these lanes' warps, [warps, 16, 16 or 32], from four registers of each lane."""
    left = np.zeros((len(warp.at[lanes]) // LANES, 16, 256 // width_of(kind)))
    for number, register in enumerate(one):
        values = _fragment(warp, register, kind, lanes)
        each = values.shape[-1]
        for place in range(each):
            left[:, GROUP + 8 * (number & 1), IN_GROUP * each + place + 4 * each * (number >> 1)] = values[..., place]
    return left


def add_product(
    warp: Warp, product: Array, result: tuple[Operand, ...], added: tuple[Operand, ...], kind: str, lanes: Lanes
) -> None:
    """Writes `added` + product, [warps, 16, columns], into the registers of its 16 x 8 fragments; no `added`: 0."""
    for number, target in enumerate(result):
        column = 8 * (number // 4) + IN_GROUP * 2 + (number & 1)
        found = product[:, GROUP + 8 * (number >> 1 & 1), column].reshape(-1)
        found = found + warp.read(added[number], kind, lanes) if added else found
        warp.write(target, found.astype(np.int64).astype(np.int32) if kind == "s32" else found, kind, lanes)


def store(warp: Warp, instruction: Instruction, lanes: Lanes) -> None:
    """`stmatrix`: the reverse of `ldmatrix`."""
    whole = warp.whole(lanes)
    target, source = instruction.operands
    addresses = warp.address(target, 32, lanes).reshape(-1, LANES)
    blocks = np.repeat(whole[:, 0] // LANES, 8)
    for number, register in enumerate(registers(source)):
        words = np.ascontiguousarray(warp.read_bits(register, 32, lanes))
        matrix = words.view(np.uint16).reshape(-1, 8, 8)
        if "trans" in instruction.opcode:
            matrix = matrix.transpose(0, 2, 1)
        rows = np.ascontiguousarray(matrix).view(np.uint8).reshape(-1, 16)
        warp.shared.store(blocks, addresses[:, 8 * number : 8 * number + 8].reshape(-1), rows, warp.number)


def _fragment(warp: Warp, register: Operand, kind: str, lanes: Lanes) -> Array:
    """Returns [warps, 32, numbers of a register]."""
    return halves(warp.read_bits(register, 32, lanes), kind).reshape(-1, LANES, 32 // width_of(kind)).astype(np.float64)


def width_of(kind: str) -> int:
    return 8 if kind in ("s8", "u8", "e4m3", "e5m2") else 16
