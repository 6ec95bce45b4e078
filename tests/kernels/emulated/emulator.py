"""Runs blocks of a kernel: a warp at a time, the same warp of all blocks together, from barrier to barrier.

The lanes of a warp go in lockstep; where they part, the lanes that are behind go first. Another warp runs only when all
lanes wait at a barrier or have ended, so an order that no barrier makes is noticed by `SharedMemory`.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from tests.kernels.emulated.memory import Fault, SharedMemory
from tests.kernels.emulated.operations import execute
from tests.kernels.emulated.ptx import Instruction
from tests.kernels.emulated.warp import ALL_LANES, LANES, Grid, Lanes, Launch, Warp

LANES_AT_A_TIME = 1 << 13
"""Lanes of one warp number that run together: enough to make the work of an instruction larger than its dispatch."""


def run(launch: Launch) -> None:
    """Runs all blocks. Raises Fault where a device might compute something else."""
    width, height, depth = launch.grid
    blocks = [(x, y, z) for z, y, x in product(range(depth), range(height), range(width))]
    for start in range(0, len(blocks), LANES_AT_A_TIME // LANES):
        _run_blocks(launch, blocks[start : start + LANES_AT_A_TIME // LANES], start)


def _run_blocks(launch: Launch, blocks: Sequence[Grid], first: int) -> None:
    shared = SharedMemory(len(blocks), max(launch.shared_bytes, 16))
    warps = [Warp.of(launch, number, shared, blocks, first) for number in range(launch.program.threads // LANES)]
    while True:
        for warp in warps:
            _to_barrier(warp)
        waiting = np.stack([warp.waiting[::LANES] for warp in warps])
        ended = np.stack([warp.ended[::LANES] for warp in warps]) & ~waiting
        if (waiting.any(axis=0) & ended.any(axis=0)).any():
            raise Fault(f"{launch.program.name}: a warp ends while others of its block wait at a barrier")
        if not waiting.any():
            return
        shared.pass_barrier(np.flatnonzero(waiting.all(axis=0)))
        for warp in warps:
            warp.barriers += warp.waiting
            warp.waiting[:] = False


def _to_barrier(warp: Warp) -> None:
    """Runs until every lane waits at a barrier or has ended."""
    end = len(warp.launch.program.instructions)
    while True:
        free = np.where(warp.waiting, end, warp.at)
        at = int(free.min())
        if at >= end:
            return
        chosen = free == at
        lanes: Lanes = ALL_LANES if chosen.all() else np.flatnonzero(chosen)
        _straight(warp, at, lanes, {*free[~chosen].tolist(), end})


def _straight(warp: Warp, at: int, lanes: Lanes, stops: set[int]) -> None:
    """Runs these lanes together until they part, wait, or come to where others stand."""
    program = warp.launch.program
    while at not in stops:
        instruction = program.instructions[at]
        active, kind = _active(warp, instruction, lanes), instruction.opcode[0]
        if kind in ("bra", "ret", "exit"):
            warp.at[lanes] = at + 1
            warp.at[active] = program.targets[at] if kind == "bra" else len(program.instructions)
            return
        if kind in ("bar", "barrier") and "warp" not in instruction.opcode:
            warp.whole(lanes)
            warp.at[lanes] = at + 1
            warp.waiting[lanes] = True
            return
        if isinstance(active, slice) or len(active):
            try:
                execute(warp, instruction, active)
            except Fault as fault:
                raise Fault(f"{fault} ({program.name}, warp {warp.number}: {instruction.text})") from None
        at += 1
    warp.at[lanes] = at


def _active(warp: Warp, instruction: Instruction, lanes: Lanes) -> Lanes:
    """Returns the lanes whose predicate is true."""
    if instruction.predicate is None:
        return lanes
    chosen: Any = warp.read_bits(instruction.predicate, 1, lanes)
    if chosen.all():
        return lanes
    return np.flatnonzero(chosen) if isinstance(lanes, slice) else lanes[chosen]
