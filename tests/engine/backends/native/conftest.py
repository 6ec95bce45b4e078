"""What the tests of native operators share. They need a C compiler, those of ARM's a cross compiler and QEMU."""

import ctypes
import os
import shutil
from collections.abc import Callable, Iterator

import pytest

from engine.backends.native import build, levels
from engine.backends.native.library import load
from tests.engine.backends.native.emulated import PROGRAMS, emulated

NATIVE = "-march=native"
LEVELS = {
    "this processor": ("", (NATIVE,)),
    "AVX-512 bf16 without AMX": ("avx512_bf16", (NATIVE, "-mno-amx-tile")),
    "AVX-512": ("avx512f", (NATIVE, "-mno-amx-tile", "-mno-avx512bf16", "-mno-avx512vnni", "-mno-avx512vbmi")),
    "AVX-VNNI": ("avx512_vnni", ("-march=x86-64-v3", "-mavxvnni", '-DVNNI_ENCODING="evex"')),
    "AVX2": ("avx2", ("-march=x86-64-v3",)),
}
"""The flag of /proc/cpuinfo that a level needs, and the compiler's options.

AVX-VNNI runs in AVX-512's encoding, which takes the same operands, where a processor has no other.
"""
ARM_LEVELS = {level.name: level.options for level in levels.LEVELS if level.machine == "aarch64"}
"""The compiler's options for ARM processors, which QEMU stands in for."""
CHOSEN_LEVEL = os.environ.get("BATON_TEST_LEVEL", "")
"""A level by which all tests of operators run, in place of this processor's own."""


@pytest.fixture(scope="session")
def library_of() -> Iterator[Callable[[str], ctypes.CDLL]]:
    """Finds the library of a level, or skips the test where nothing here can run it."""
    made: dict[str, ctypes.CDLL] = {}

    def find(name: str) -> ctypes.CDLL:
        if name in LEVELS:
            needs, target = LEVELS[name]
            if needs and needs not in build.processor().split():
                pytest.skip(f"this processor has no {needs}")
            return load(target)
        missing = [program for program in PROGRAMS if not shutil.which(program)]
        if missing:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(
                f"no {' and no '.join(missing)}; .ci/run installs them"
            )
        if name not in made:
            made[name] = emulated(ARM_LEVELS[name])
        return made[name]

    yield find
    for library in made.values():
        library.close()


@pytest.fixture(scope="session")
def native(library_of: Callable[[str], ctypes.CDLL]) -> ctypes.CDLL:
    """The library as a worker loads it, or that of the chosen level."""
    return library_of(CHOSEN_LEVEL) if CHOSEN_LEVEL else load()


@pytest.fixture(scope="session", params=[CHOSEN_LEVEL] if CHOSEN_LEVEL else LEVELS)
def level(request: pytest.FixtureRequest, library_of: Callable[[str], ctypes.CDLL]) -> ctypes.CDLL:
    """The library as it would be on this processor, and on lesser ones that this one can stand in for."""
    return library_of(request.param)
