"""Sizes are read as people write them, and shown as they are read."""

import pytest

from infra.sizes import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("2K", 2048), ("1.5MiB", 3 << 19), ("2GB", 2 << 30), (" 3 g ", 3 << 30)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0B"), (1023, "1023B"), (1024, "1.0KiB"), (3 << 19, "1.5MiB"), (3 << 40, "3.0TiB")]
)
def test_a_size_that_is_shown_can_be_read(size: int, text: str) -> None:
    assert format_bytes(size) == text
    assert parse_bytes(text) == size
