"""Reads a kernel's machine code: the hot loops of a disassembled kernel, and the instructions of each loop by kind.

Pure but for `disassembled`. A loop is what lies between a backward branch and its target. The innermost loops with
tensor-core instructions are hot; a kernel without such instructions has its longest innermost loop. All counts are
instructions that one warp issues in one turn.
"""

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

WARP_THREADS, WARP_GROUP_WARPS = 32, 4
TIMEOUT_S = 60
LINE = re.compile(r"^[ \t]+/\*([0-9a-f]{4,})\*/[ \t]+(?:@!?U?P\w+[ \t]+)?([A-Z][\w.]*)[ \t]*([^;&?/\n]*)", re.MULTILINE)
"""An instruction of a listing: its address, perhaps a predicate, the opcode and the operands. They end at a semicolon,
or where CUDA 12 writes how instructions of Blackwell wait for each other."""
BRANCH_TARGET = re.compile(r"0x([0-9a-f]+)\s*$")
WARP_GROUP_SHAPE = re.compile(r"\.(\d+)x(\d+)x(\d+)\b")
WARP_SHAPE = re.compile(r"\.(16|8)(8)(\d+)\b")
"""Rows, columns and depth of a product: `HGMMA.64x16x16` of four warps, `HMMA.16816` of one warp."""
WIDTH_BYTES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
WORD_BYTES = 4
WARP_PRODUCTS, WARP_GROUP_PRODUCTS = ("HMMA", "IMMA", "QMMA"), ("HGMMA", "IGMMA", "QGMMA")
CONVERSIONS = ("F2F", "F2FP", "I2F", "I2FP", "I2IP", "F2I", "F2IP", "I2I", "HADD2.F32")


class Instruction(NamedTuple):
    """One instruction: `opcode` has its suffixes, such as `LDG.E.128`."""

    address: int
    opcode: str
    operands: str

    @property
    def name(self) -> str:
        return self.opcode.partition(".")[0]

    @property
    def suffixes(self) -> list[str]:
        return self.opcode.split(".")[1:]

    @property
    def multiply_adds(self) -> int:
        """Counts the products that a warp adds up: a quarter of a warp group's."""
        if self.name in WARP_PRODUCTS and (shape := WARP_SHAPE.search(self.opcode)):
            return prod(map(int, shape.groups()))
        if self.name in WARP_GROUP_PRODUCTS and (shape := WARP_GROUP_SHAPE.search(self.opcode)):
            return prod(map(int, shape.groups())) // WARP_GROUP_WARPS
        return 0


@dataclass(frozen=True)
class Loop:
    """What one turn of a hot loop issues, in warp instructions."""

    instructions: int
    tensor: int
    multiply_adds: int
    load_bytes: tuple[int, ...]  # of a thread, of each load from global memory
    conversions: int
    barriers: int
    shared_stores: int
    shared_loads: int
    shuffles: int
    spills: int
    product_waits: int  # for products of a warp group

    def weights(self, rows: int) -> float:
        """Returns the weights of a thread in a turn, where each weight is multiplied by `rows` rows."""
        return self.multiply_adds / rows / WARP_THREADS


def disassembled(code: bytes) -> str:
    """Returns the listing of a compiled kernel, by the disassembler that comes with Triton."""
    with TemporaryDirectory() as directory:
        path = Path(directory, "kernel.cubin")
        path.write_bytes(code)
        return _cuobjdump("-sass", str(path))


def disassembler_version() -> str:
    return next(line for line in _cuobjdump("--version").splitlines() if "release" in line)


def _cuobjdump(*arguments: str) -> str:
    found = find_spec("triton")
    assert found is not None and found.origin is not None
    program = str(Path(found.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump")
    command = [program, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S).stdout


def instructions_of(listing: str) -> list[Instruction]:
    return [Instruction(int(address, 16), *rest) for address, *rest in LINE.findall(listing)]


def hot_loops(listing: str) -> list[Loop]:
    """Returns the hot loops of a listing, the longest first; none if the kernel has no loop."""
    bodies = sorted(innermost(instructions_of(listing)), key=len, reverse=True)
    loops = [counted(body) for body in bodies]
    return [loop for loop in loops if loop.tensor] or loops[:1]


def innermost(instructions: Sequence[Instruction]) -> Iterator[Sequence[Instruction]]:
    place = {each.address: index for index, each in enumerate(instructions)}
    loops = set()
    for end, each in enumerate(instructions):
        target = BRANCH_TARGET.search(each.operands) if each.name == "BRA" else None
        begin = place.get(int(target.group(1), 16), end) if target else end
        if begin < end:  # the branch behind a kernel's end is its own target
            loops.add((begin, end))
    for begin, end in loops:
        if not any(begin <= first and last <= end for first, last in loops - {(begin, end)}):
            yield instructions[begin : end + 1]


def counted(body: Sequence[Instruction]) -> Loop:
    def of(*names: str) -> int:
        return sum(each.name in names for each in body)

    return Loop(
        instructions=len(body),
        tensor=of(*WARP_PRODUCTS, *WARP_GROUP_PRODUCTS),
        multiply_adds=sum(each.multiply_adds for each in body),
        load_bytes=tuple(width(each) for each in body if each.name in ("LDG", "LDGSTS")),
        conversions=sum(each.name in CONVERSIONS or each.opcode in CONVERSIONS for each in body),
        barriers=of("BAR"),
        shared_stores=of("STS", "STSM"),
        shared_loads=of("LDS", "LDSM"),
        shuffles=of("SHFL"),
        spills=of("LDL", "STL"),
        product_waits=sum(each.opcode.startswith("WARPGROUP.DEPBAR") for each in body),
    )


def width(load: Instruction) -> int:
    return next((WIDTH_BYTES[each] for each in load.suffixes if each in WIDTH_BYTES), WORD_BYTES)
