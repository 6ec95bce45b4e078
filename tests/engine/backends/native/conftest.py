"""What the tests of native operators share. They need a C compiler, those of ARM's a cross compiler and QEMU."""

import ctypes

import pytest

from engine.backends.native import library
from tests.engine.backends.native.levels import CHOSEN_LEVEL, LEVELS, library_of


@pytest.fixture(scope="session")
def native() -> ctypes.CDLL:
    """The library as a worker loads it, or that of the chosen level."""
    return library.load()


@pytest.fixture(scope="session", params=[CHOSEN_LEVEL] if CHOSEN_LEVEL else LEVELS)
def level(request: pytest.FixtureRequest) -> ctypes.CDLL:
    """The library as it would be on this processor, and on lesser ones that this one can stand in for."""
    return library_of(request.param)
