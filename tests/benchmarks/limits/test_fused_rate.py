"""The rate of fp32 numbers in registers: real operations, as many as are counted."""

import ctypes

import pytest

from benchmarks.limits import fused_rate as module


def test_sums_are_computed_and_counted() -> None:
    library = module._library()
    assert library is not None
    found = ctypes.c_float()
    operations = library.multiply_and_add(60, 0.5, ctypes.byref(found))
    lanes, rest = divmod(operations, 60 * 12 * 2)
    assert lanes in (8, 16) and rest == 0
    assert found.value == lanes * 12  # of x -> x / 2 + 1 / 2 after many steps


def test_without_a_compiler_there_is_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    module._library.cache_clear()
    try:
        assert module.fused_rate(1) == 0
    finally:
        module._library.cache_clear()
