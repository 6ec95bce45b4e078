"""Instruction levels by which tests run the native operators: this processor's, lesser ones, and ARM's under QEMU.

`BATON_TEST_LEVEL` names a level by which all of the engine's tests run them, in place of this processor's own.
"""

import ctypes
import os
import shutil
from collections.abc import Sequence
from functools import cache

import pytest

from engine.backends import choice
from engine.backends.native import library
from engine.backends.native.compiling import build, levels
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
LOAD = library.load


@cache
def library_of(name: str) -> ctypes.CDLL:
    """Loads the library of a level, or skips the test where nothing here can run it."""
    if name in LEVELS:
        needs, target = LEVELS[name]
        if needs and needs not in build.processor().split():
            pytest.skip(f"this processor has no {needs}")
        return LOAD(target)
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    if missing:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no {' and no '.join(missing)}; .ci/run installs them")
    return emulated(ARM_LEVELS[name])


def choose(name: str) -> None:
    """Makes a level's library what a worker and a test load. Comes before the modules of tests, which import `load`."""

    def load(target: Sequence[str] = ()) -> ctypes.CDLL:
        return LOAD(target) if target else library_of(name)

    for module in (library, choice):
        pytest.MonkeyPatch().setattr(module, "load", load)
