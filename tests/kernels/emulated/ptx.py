"""Reads the PTX of one kernel into instructions whose operands are decoded.

The subset is what Triton writes: one `.entry`, registers, labels, and inline assembly with registers of its own.
Source: NVIDIA, *Parallel Thread Execution ISA*, version 8.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

COMMENT_LINES = re.compile(r"//[^\n]*|^\s*\.(?:loc|file)\b[^\n]*$", re.M)
ENTRY = re.compile(r"\.entry\s+(\w+)\s*\((.*?)\)([^{]*)\{", re.S)
PARAMETER = re.compile(r"\.param\s+\.[a-z](\d+)[^,]*?(\w+)\s*(?:,|$)", re.S)
THREADS = re.compile(r"\.reqntid\s+(\d+)")
LABEL = re.compile(r"(\$\w+):\s*")
PREDICATE = re.compile(r"@(!?)(%?\w+)\s+(.*)", re.S)
REGISTERS = re.compile(r"\.reg\s+\.([a-z]+)(\d*)\s+(.*)", re.S)
NUMBERED = re.compile(r"([%\w]+)<(\d+)>")
ADDRESS = re.compile(r"\[\s*([%\w]+)\s*(?:\+\s*(-?\w+))?\s*\]")


@dataclass(frozen=True)
class Register:
    """A register: its place in a register file, and its width in bits, which is 1 for a predicate."""

    index: int
    bits: int
    negated: bool = False


@dataclass(frozen=True)
class Special:
    """A register that the device sets, such as `%tid.x`, or a symbol of the module."""

    name: str


@dataclass(frozen=True)
class Immediate:
    """A number in the code, as the bits that it has."""

    bits: int


@dataclass(frozen=True)
class Vector:
    parts: "tuple[Operand, ...]"


@dataclass(frozen=True)
class Address:
    """`[base + offset]`, the offset in bytes."""

    base: "Operand"
    offset: int


Operand = Register | Special | Immediate | Vector | Address


@dataclass(frozen=True)
class Instruction:
    """`@predicate opcode operands`. `opcode` has its parts: `ld.global.v4.b32` has four."""

    predicate: Register | None
    opcode: tuple[str, ...]
    operands: tuple[Operand, ...]
    text: str


@dataclass(frozen=True)
class Program:
    """A kernel: the instructions, the place of each label, parameters with their widths in bits."""

    name: str
    parameters: tuple[tuple[str, int], ...]
    threads: int
    instructions: tuple[Instruction, ...]
    targets: dict[int, int]
    """The index of the instruction that a branch goes to, by the branch's index."""
    registers: tuple[int, ...]
    """Widths in bits, by index."""


def parse(text: str) -> Program:
    """Raises ValueError where the text has no entry or an operand is unknown."""
    text = COMMENT_LINES.sub("", text).partition(".section")[0]
    entry = ENTRY.search(text)
    if entry is None:
        raise ValueError("no .entry")
    threads = THREADS.search(entry[3])
    if threads is None:
        raise ValueError("no .reqntid")
    reader = _Reader()
    for statement in _statements(text[entry.end() : text.rindex("}")]):
        reader.read(statement)
    return Program(
        name=entry[1],
        parameters=tuple((name, int(bits)) for bits, name in PARAMETER.findall(entry[2])),
        threads=int(threads[1]),
        instructions=tuple(reader.instructions),
        targets={at: reader.labels[label] for at, label in reader.branches.items()},
        registers=tuple(reader.widths),
    )


def _statements(body: str) -> Iterator[str]:
    """Yields labels and statements. The braces of blocks go; those of vectors stay."""
    for part in body.split(";"):
        rest = " ".join(part.split())
        while rest:
            if label := LABEL.match(rest):
                yield label[0]
                rest = rest[label.end() :]
            elif rest[0] in "{}":
                rest = rest[1:].lstrip()
            else:
                yield rest
                break


class _Reader:
    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.branches: dict[int, str] = {}
        self.widths: list[int] = []
        self._registers: dict[str, Register] = {}

    def read(self, statement: str) -> None:
        if label := LABEL.fullmatch(statement):
            self.labels[label[1]] = len(self.instructions)
        elif declared := REGISTERS.match(statement):
            self._declare(1 if declared[1] == "pred" else int(declared[2]), declared[3])
        elif not statement.startswith("."):
            self._instruction(statement)

    def _declare(self, bits: int, names: str) -> None:
        """Adds registers. A block of inline assembly may declare a name again: it is another register from there on."""
        for name in re.split(r"\s*,\s*", names.strip()):
            numbered = NUMBERED.fullmatch(name)
            for each in (f"{numbered[1]}{n}" for n in range(int(numbered[2]))) if numbered else (name,):
                self._registers[each] = Register(len(self.widths), bits)
                self.widths.append(bits)

    def _instruction(self, statement: str) -> None:
        predicate, rest = None, statement
        if guarded := PREDICATE.match(statement):
            found = self._registers[guarded[2]]
            predicate, rest = Register(found.index, 1, bool(guarded[1])), guarded[3]
        opcode, _, operands = rest.partition(" ")
        parts = tuple(opcode.split("."))
        if parts[0] == "bra":
            self.branches[len(self.instructions)] = operands.strip()
            operands = ""
        read = tuple(self._operand(each) for each in _split(operands))
        self.instructions.append(Instruction(predicate, parts, read, statement))

    def _operand(self, text: str) -> Operand:
        if text in self._registers:
            return self._registers[text]
        if text.startswith("!") and text[1:] in self._registers:
            return Register(self._registers[text[1:]].index, 1, negated=True)
        if text.startswith("{"):
            return Vector(tuple(self._operand(part) for part in _split(text.strip("{} "))))
        if address := ADDRESS.fullmatch(text):
            return Address(self._operand(address[1]), int(address[2] or "0", 0))
        if text[:2] in ("0f", "0F", "0d", "0D"):
            return Immediate(int(text[2:], 16))
        if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)U?", text):
            return Immediate(int(text.rstrip("U"), 0))
        if "|" in text:  # two results, the second of which is a predicate
            return Vector(tuple(self._operand(part) for part in text.split("|")))
        if re.fullmatch(r"[%\w.]+", text):
            return Special(text)
        raise ValueError(f"unknown operand {text!r}")


def _split(text: str) -> Iterator[str]:
    """Splits at commas outside of brackets."""
    depth, start = 0, 0
    for at, sign in enumerate(text):
        depth += (sign in "[{") - (sign in "]}")
        if sign == "," and depth == 0:
            yield text[start:at].strip()
            start = at + 1
    if text[start:].strip():
        yield text[start:].strip()
