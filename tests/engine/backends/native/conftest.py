"""What the tests of native operators share. They need a C compiler."""

import ctypes

import pytest

from engine.backends.native import build
from engine.backends.native.library import load

NATIVE = "-march=native"
LEVELS = {
    "this processor": ("", (NATIVE,)),
    "AVX-512 bf16 without AMX": ("avx512_bf16", (NATIVE, "-mno-amx-tile")),
    "AVX-512": ("avx512f", (NATIVE, "-mno-amx-tile", "-mno-avx512bf16", "-mno-avx512vnni", "-mno-avx512vbmi")),
    "AVX2": ("avx2", ("-march=x86-64-v3",)),
}
"""The flag of /proc/cpuinfo that a level needs, and the compiler's options."""


@pytest.fixture(scope="session")
def native() -> ctypes.CDLL:
    """The library as a worker loads it."""
    return load()


@pytest.fixture(scope="session", params=LEVELS)
def level(request: pytest.FixtureRequest) -> ctypes.CDLL:
    """The library as it would be on this processor, and on lesser ones that this one can stand in for."""
    needs, target = LEVELS[request.param]
    if needs and needs not in build.processor().split():
        pytest.skip(f"this processor has no {needs}")
    return load(target)
