"""What the lanes of a warp exchange: shuffles, votes, reductions."""

from collections.abc import Callable

import numpy as np

from tests.kernels.emulated.matrices import registers
from tests.kernels.emulated.number_formats import Array
from tests.kernels.emulated.ptx import Instruction
from tests.kernels.emulated.warp import LANES, Lanes, Warp


def shuffle(warp: Warp, instruction: Instruction, lanes: Lanes) -> None:
    """`shfl.sync`. Formula of the source lane: PTX ISA, section on `shfl.sync`."""
    warp.whole(lanes)
    result, source, by, control, *_ = instruction.operands
    values = warp.read_bits(source, 32, lanes).reshape(-1, LANES)
    count, word = (warp.read_bits(each, 32, lanes).astype(np.int64).reshape(-1, LANES) for each in (by, control))
    lane, segment, clamp = np.arange(LANES), (word >> 8) & 31, word & 31
    first, last = lane & segment, (lane & segment) | (clamp & ~segment)
    mode = instruction.opcode[2]
    wanted = {"bfly": lane ^ count, "idx": first | (count & ~segment), "up": lane - count, "down": lane + count}[mode]
    inside = wanted >= last if mode == "up" else wanted <= last
    found = np.take_along_axis(values, np.where(inside, wanted, lane) & 31, 1)
    first_result, *second = registers(result)
    warp.write(first_result, found.reshape(-1), "b32", lanes)
    for each in second:
        warp.write(each, inside.reshape(-1), "pred", lanes)


def vote(warp: Warp, instruction: Instruction, lanes: Lanes) -> None:
    warp.whole(lanes)
    result, source, *_ = instruction.operands
    votes = warp.read(source, "pred", lanes).reshape(-1, LANES)
    if "ballot" in instruction.opcode:
        words = (votes.astype(np.uint64) << np.arange(LANES, dtype=np.uint64)).sum(axis=1)
        warp.write(result, np.repeat(words, LANES), "b32", lanes)
    else:
        found = votes.any(axis=1) if "any" in instruction.opcode else votes.all(axis=1)
        warp.write(result, np.repeat(found, LANES), "pred", lanes)


REDUCE: dict[str, Callable[..., Array]] = {
    "add": np.sum, "min": np.min, "max": np.max, "or": np.bitwise_or.reduce, "and": np.bitwise_and.reduce,
    "xor": np.bitwise_xor.reduce,
}  # fmt: skip


def reduce(warp: Warp, instruction: Instruction, lanes: Lanes) -> None:
    warp.whole(lanes)
    kind = instruction.opcode[-1]
    values = warp.read(instruction.operands[1], kind, lanes).reshape(-1, LANES)
    found = REDUCE[instruction.opcode[2]](values, axis=1).astype(values.dtype)
    warp.write(instruction.operands[0], np.repeat(found, LANES), kind, lanes)
