"""One warp of several blocks: its registers, its lanes' places in the program, its copies under way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.kernels.emulated.memory import Accessor, CopyInFlight, Fault, GlobalMemory, Places, SharedMemory
from tests.kernels.emulated.number_formats import UNSIGNED, Array, bits, bits_of, numbers
from tests.kernels.emulated.ptx import Address, Immediate, Operand, Program, Register, Special, Vector

LANES = 32
Grid = tuple[int, int, int]
Lanes = Places | slice
"""Indices of lanes that an instruction runs in, or a slice of all."""
ALL_LANES = slice(None)


@dataclass(frozen=True)
class Launch:
    """What all blocks of a launch share."""

    program: Program
    arguments: Mapping[str, int]
    grid: Grid
    shared_bytes: int
    memory: GlobalMemory


@dataclass
class Warp:
    """One warp of several blocks: lane 32 b + i is lane i in block b."""

    launch: Launch
    number: int
    shared: SharedMemory
    special: dict[str, Array]
    registers: list[Array]
    at: Places
    """Index of each lane's next instruction."""
    waiting: Array
    """Lanes at a barrier."""
    copy_groups: Places
    """Groups of copies that each lane has committed."""
    barriers: Places
    """Barriers that each lane has passed."""
    first_block: int
    """Number of the first of these blocks in the launch."""
    product_groups: Places
    """Groups of asynchronous products that each lane has committed."""
    copies: list[CopyInFlight] = field(default_factory=list)
    products: list[Any] = field(default_factory=list)
    """Asynchronous products under way; `warpgroups` has their type."""

    @classmethod
    def of(cls, launch: Launch, number: int, shared: SharedMemory, blocks: Sequence[Grid], first: int) -> "Warp":
        count = LANES * len(blocks)
        thread = np.tile(np.arange(LANES, dtype=np.uint32) + np.uint32(LANES * number), len(blocks))
        special = {"%tid.x": thread, "%laneid": thread % np.uint32(LANES)}
        special["%ntid.x"] = np.full(count, launch.program.threads, np.uint32)
        for axis, size, places in zip("xyz", launch.grid, zip(*blocks, strict=True), strict=True):
            special[f"%ctaid.{axis}"] = np.repeat(np.array(places, np.uint32), LANES)
            special[f"%nctaid.{axis}"] = np.full(count, size, np.uint32)
        for axis in "yz":
            special[f"%tid.{axis}"], special[f"%ntid.{axis}"] = np.zeros(count, np.uint32), np.ones(count, np.uint32)
        return cls(
            launch=launch,
            number=number,
            first_block=first,
            shared=shared,
            special=special,
            registers=[np.zeros(count, UNSIGNED[width]) for width in launch.program.registers],
            waiting=np.zeros(count, bool),
            at=np.zeros(count, np.int64),
            barriers=np.zeros(count, np.int64),
            copy_groups=np.zeros(count, np.int64),
            product_groups=np.zeros(count, np.int64),
        )

    @property
    def ended(self) -> Array:
        return np.asarray(self.at >= len(self.launch.program.instructions))

    def blocks(self, lanes: Lanes) -> Places:
        """Returns the block of each lane."""
        return np.asarray(np.arange(len(self.at))[lanes] // LANES)

    def accessor(self, lanes: Lanes) -> Accessor:
        return Accessor(self.blocks(lanes) + self.first_block, self.number, self.barriers[lanes])

    def whole(self, lanes: Lanes) -> Places:
        """Returns the lanes as [warps, 32]. Raises Fault where some lanes of a warp are elsewhere."""
        indices = np.arange(len(self.at))[lanes]
        if len(indices) % LANES or (indices.reshape(-1, LANES)[:, 0] % LANES).any():
            raise Fault("some lanes of a warp do not take part in what the whole warp does")
        return indices.reshape(-1, LANES)

    def read(self, operand: Operand, kind: str, lanes: Lanes) -> Array:
        """Returns an operand's values, as numbers of a type."""
        return numbers(self.read_bits(operand, bits_of(kind), lanes), kind)

    def read_bits(self, operand: Operand, width: int, lanes: Lanes) -> Array:
        if isinstance(operand, Register):
            held = self.registers[operand.index][lanes]
            if operand.bits == 1:
                return ~held if operand.negated else held
            return held if operand.bits == width else held.astype(UNSIGNED[width])
        count = len(self.at[lanes])
        if isinstance(operand, Immediate):
            return np.full(count, operand.bits & ((1 << width) - 1), UNSIGNED[width])
        if isinstance(operand, Special):
            if operand.name == "global_smem":
                return np.zeros(count, UNSIGNED[width])
            return self.special[operand.name][lanes].astype(UNSIGNED[width], copy=False)
        raise NotImplementedError(f"operand {operand}")

    def write(self, operand: Operand, values: Array, kind: str, lanes: Lanes) -> None:
        """Writes numbers of a type into a register, whose upper bits are 0, or the sign of a signed type."""
        raw = bits(values, kind)
        if isinstance(operand, Vector):  # two results, which the caller writes
            operand = operand.parts[0]
        if isinstance(operand, Register):
            if kind[0] == "s" and operand.bits > raw.dtype.itemsize * 8:
                raw = numbers(raw, kind).astype(np.int64)
            self.registers[operand.index][lanes] = raw.astype(UNSIGNED[operand.bits], copy=False)
        elif not (isinstance(operand, Special) and operand.name == "_"):
            raise NotImplementedError(f"result {operand}")

    def address(self, operand: Operand, width: int, lanes: Lanes) -> Places:
        """Returns byte addresses: of a tensor with a width of 64 bits, in shared memory with one of 32."""
        assert isinstance(operand, Address)
        return self.read_bits(operand.base, width, lanes).astype(np.int64) + operand.offset
