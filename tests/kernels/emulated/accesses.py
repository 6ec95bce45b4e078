"""Accesses of PTX to tensors, shared memory and parameters, `cp.async` and atomics among them."""

from collections.abc import Callable

import numpy as np

from tests.kernels.emulated.matrices import registers
from tests.kernels.emulated.memory import CopyInFlight
from tests.kernels.emulated.number_formats import UNSIGNED, Array, bits_of, numbers
from tests.kernels.emulated.ptx import Address, Immediate, Instruction, Special
from tests.kernels.emulated.warp import Lanes, Warp

CHANGES: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "or": np.bitwise_or,
    "exch": lambda held, given: given,
}
"""Functions of the value in memory and the given value."""


def load(warp: Warp, instruction: Instruction, lanes: Lanes) -> None:
    opcode, (result, source, *_) = instruction.opcode, instruction.operands
    kind = opcode[-1]
    width = bits_of(kind)
    if opcode[1] == "param":
        assert isinstance(source, Address) and isinstance(source.base, Special)
        value = warp.launch.arguments[source.base.name]
        warp.write(result, np.full(len(warp.at[lanes]), value, UNSIGNED[width]), f"b{width}", lanes)
        return
    parts = registers(result)
    count = width // 8 * len(parts)
    if "shared" in (word.partition("::")[0] for word in opcode):
        starts = warp.address(source, 32, lanes)
        found = warp.shared.load(warp.blocks(lanes), starts, count, warp.number)
    else:
        found = warp.launch.memory.load(warp.address(source, 64, lanes), count, warp.accessor(lanes))
    values = np.ascontiguousarray(found).view(UNSIGNED[width])
    for place, part in enumerate(parts):
        warp.write(part, numbers(values[:, place].copy(), kind if kind[0] == "s" else f"b{width}"), kind, lanes)


def store(warp: Warp, instruction: Instruction, lanes: Lanes) -> None:
    opcode, (target, source, *_) = instruction.opcode, instruction.operands
    width = bits_of(opcode[-1])
    values = np.stack([warp.read_bits(part, width, lanes) for part in registers(source)], axis=1)
    data = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
    if "shared" in (word.partition("::")[0] for word in opcode):
        warp.shared.store(warp.blocks(lanes), warp.address(target, 32, lanes), data, warp.number)
    else:
        warp.launch.memory.store(warp.address(target, 64, lanes), data, warp.accessor(lanes))


def copy(warp: Warp, instruction: Instruction, lanes: Lanes) -> None:
    """`cp.async`, its groups and waits."""
    opcode, operands = instruction.opcode, instruction.operands
    if "commit_group" in opcode:
        warp.copy_groups[lanes] += 1
    elif "wait_all" in opcode:
        _land(warp, lanes, 0, with_open=True)
    elif "wait_group" in opcode:
        assert isinstance(operands[0], Immediate)
        _land(warp, lanes, operands[0].bits)
    else:
        target, source, size, *given = operands
        assert isinstance(size, Immediate)
        starts, addresses = warp.address(target, 32, lanes), warp.address(source, 64, lanes)
        read = warp.read_bits(given[0], 32, lanes) if given else np.full(len(starts), size.bits, np.uint32)
        values = np.zeros((len(starts), size.bits), np.uint8)
        indices = np.arange(len(warp.at))[lanes]
        for count in np.unique(read[read > 0]):
            chosen = read == count
            by = warp.accessor(indices[chosen])
            values[chosen, :count] = warp.launch.memory.load(addresses[chosen], int(count), by)
        ctas = warp.blocks(lanes)
        warp.shared.poison(ctas, starts, size.bits, warp.number)
        warp.copies.append(CopyInFlight(indices, warp.copy_groups[lanes].copy(), ctas, starts, values))


def _land(warp: Warp, lanes: Lanes, allowed: int, with_open: bool = False) -> None:
    """Lands the copies of these lanes, but those of the last `allowed` groups."""
    waits = np.zeros(len(warp.at), bool)
    waits[lanes] = True
    last = warp.copy_groups - allowed + with_open
    left = []
    for copy in warp.copies:
        landed = waits[copy.lanes] & (copy.groups < last[copy.lanes])
        if landed.any():
            warp.shared.store(copy.ctas[landed], copy.starts[landed], copy.values[landed], warp.number, landing=True)
        if not landed.all():
            rest = ~landed
            left.append(CopyInFlight(*(each[rest] for each in vars(copy).values())))
    warp.copies[:] = left


def atomic(warp: Warp, instruction: Instruction, lanes: Lanes) -> None:
    """Lane by lane. In shared memory atomics do not race with each other, but with other accesses they do."""
    opcode, operands = instruction.opcode, instruction.operands
    kind = opcode[-1]
    function = next(CHANGES[each] for each in opcode if each in CHANGES)
    result, target, source = (Special("_"), *operands) if opcode[0] == "red" else operands[:3]
    shared = "shared" in (word.partition("::")[0] for word in opcode)
    addresses, values = warp.address(target, 32 if shared else 64, lanes), warp.read(source, kind, lanes)
    count, blocks, found = bits_of(kind) // 8, warp.blocks(lanes), np.empty_like(values)
    indices = np.arange(len(warp.at))[lanes]
    for lane, address in enumerate(addresses):
        at = np.array([address])
        if shared:
            held = warp.shared.bytes[blocks[lane], address : address + count]
            found[lane] = held.view(values.dtype)[0]
            held.view(values.dtype)[0] = function(found[lane], values[lane])
        else:
            by = warp.accessor(indices[lane : lane + 1])
            found[lane] = warp.launch.memory.load(at, count, by).view(values.dtype)[0, 0]
            new = np.array([[function(found[lane], values[lane])]], values.dtype)
            warp.launch.memory.store(at, new.view(np.uint8), by)
    warp.write(result, found, kind, lanes)
