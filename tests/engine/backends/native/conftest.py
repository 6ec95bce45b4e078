"""What the tests of native operators share. They need a C compiler."""

import ctypes

import pytest

from engine.backends.native import build
from engine.backends.native.library import load

VARIANTS = {
    "native": (),
    "without-amx": ("-mno-amx-bf16", "-mno-amx-tile", "-mno-amx-int8"),
    "avx512": ("-march=x86-64-v4",),
    "avx2": ("-march=x86-64-v3",),
}
"""Flags that make code for lesser processors."""
NEEDED = {"native": "", "without-amx": "avx512_bf16", "avx512": "avx512vl", "avx2": "avx2"}
"""What this one has to have, to run it."""


@pytest.fixture(scope="session")
def native() -> ctypes.CDLL:
    """The library as a worker loads it."""
    return load()


@pytest.fixture(scope="session", params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> ctypes.CDLL:
    """The library as it would be on this processor, and on lesser ones that this one can stand in for."""
    if NEEDED[request.param] not in build.processor():
        pytest.skip(f"this processor has no {NEEDED[request.param]}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "FLAGS", (*build.FLAGS, *VARIANTS[request.param]))
        return load()
