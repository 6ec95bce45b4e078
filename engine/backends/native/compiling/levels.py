"""Instruction levels that native operators are compiled for: a library of a level runs on every host that has it."""

from typing import NamedTuple

AVX2_FLAGS = ("avx2", "bmi2", "f16c", "fma", "abm", "movbe")
AVX512_FLAGS = (*AVX2_FLAGS, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
VNNI_FLAGS = (*AVX512_FLAGS, "avx512_vnni")
BF16_FLAGS = (*VNNI_FLAGS, "avx512vbmi", "avx512_bf16")
VNNI_OPTIONS = ("-march=x86-64-v4", "-mavx512vnni")
BF16_OPTIONS = (*VNNI_OPTIONS, "-mavx512vbmi", "-mavx512bf16")


class Level(NamedTuple):
    """What a level's processors have, in words of /proc/cpuinfo, and the compiler's options for it."""

    name: str
    machine: str
    flags: tuple[str, ...]
    options: tuple[str, ...]


LEVELS = (
    Level(
        "amx",
        "x86_64",
        (*BF16_FLAGS, "amx_tile", "amx_bf16", "amx_int8"),
        (*BF16_OPTIONS, "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
    ),
    Level("avx512_bf16", "x86_64", BF16_FLAGS, BF16_OPTIONS),
    Level("avx512_vnni", "x86_64", VNNI_FLAGS, VNNI_OPTIONS),
    Level("avx512", "x86_64", AVX512_FLAGS, ("-march=x86-64-v4",)),
    Level("avx2_vnni", "x86_64", (*AVX2_FLAGS, "avx_vnni"), ("-march=x86-64-v3", "-mavxvnni")),
    Level("avx2", "x86_64", AVX2_FLAGS, ("-march=x86-64-v3",)),
    Level("neon_bf16", "aarch64", ("asimddp", "bf16", "i8mm"), ("-march=armv8.2-a+dotprod+bf16+i8mm",)),
    Level("neon_dot", "aarch64", ("asimddp",), ("-march=armv8.2-a+dotprod",)),
    Level("neon", "aarch64", ("asimd",), ("-march=armv8-a",)),
)
"""All levels; of a machine's, the best comes first."""


def runnable(levels: tuple[Level, ...], machine: str, processor: str) -> list[Level]:
    """Returns the levels that a machine runs, best first; `processor` has the flags as /proc/cpuinfo spells them."""
    has = set(processor.split())
    return [level for level in levels if level.machine == machine and has.issuperset(level.flags)]
