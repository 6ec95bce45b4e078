"""Reads Protocol Buffers field by field, without a schema (protobuf.dev, "Encoding")."""

import struct
from collections.abc import Iterator

VARINT_TYPE, FIXED_64_TYPE, BYTES_TYPE, FIXED_32_TYPE = 0, 1, 2, 5


def fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yields number and value, an integer or bytes, of each field. Raises `ValueError` for truncated data."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == VARINT_TYPE:
            number, at = _varint(data, at)
            yield key >> 3, number
            continue
        if kind == BYTES_TYPE:
            size, at = _varint(data, at)
        elif kind in (FIXED_32_TYPE, FIXED_64_TYPE):
            size = 4 if kind == FIXED_32_TYPE else 8
        else:
            raise ValueError(f"a field of kind {kind}")
        if at + size > len(data):
            raise ValueError("a message that was cut off")
        yield key >> 3, data[at : at + size]
        at += size


def as_float(value: int | memoryview) -> float:
    if isinstance(value, int) or len(value) != 4:
        raise ValueError("a number that is not of four bytes")
    return float(struct.unpack("<f", value)[0])


def as_bytes(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("an integer in the place of bytes")
    return value


def as_int(value: int | memoryview) -> int:
    if not isinstance(value, int):
        raise ValueError("bytes in the place of an integer")
    return value - (1 << 64) if value >> 63 else value


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Returns the integer at `at`, which has seven bits of each byte up to one without the eighth bit, and its end."""
    found = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a message that was cut off")
        byte = data[at]
        found |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return found, at
