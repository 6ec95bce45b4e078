"""What the tests of native operators share. They need a C compiler."""

import ctypes

import pytest

from engine.native.library import load


@pytest.fixture(scope="session")
def native() -> ctypes.CDLL:
    """The library as a worker loads it."""
    return load()
