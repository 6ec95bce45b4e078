"""The rate of products of bytes is one that a processor can have."""

from benchmarks.limits.int8_rate import int8_rate


def test_bytes_are_multiplied_at_some_rate() -> None:
    assert 1e8 < int8_rate() < 1e16
