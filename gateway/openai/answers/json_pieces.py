"""Encodes large answers as JSON in pieces, so that other requests run in between: a prompt's scores may be 30 MB.

Encoded at once, merely touching that much new memory would block the event loop for 50 ms.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

ENTRIES_PER_PIECE = 128  # list entries; a token with all its alternatives is 1.4 kB
PIECE_BYTES = 128 << 10

encode = msgspec.json.Encoder().encode


def json_pieces(value: Any) -> Iterator[bytes]:
    """Yields the JSON of plain data in pieces of about `PIECE_BYTES`. Lists are cut between entries, strings never."""
    held = bytearray()
    for part in _parts(value):
        held += part
        if len(held) >= PIECE_BYTES:
            yield bytes(held)
            held.clear()
    yield bytes(held)


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, dict) and value:
        before = b"{"
        for name, one in value.items():
            yield before + encode(name) + b":"
            yield from _parts(one)
            before = b","
        yield b"}"
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        before = b"["
        for one in value:
            yield before
            yield from _parts(one)
            before = b","
        yield b"]"
    elif isinstance(value, list) and len(value) > ENTRIES_PER_PIECE:
        before = b"["
        for begin in range(0, len(value), ENTRIES_PER_PIECE):
            yield before + encode(value[begin : begin + ENTRIES_PER_PIECE])[1:-1]
            before = b","
        yield b"]"
    else:
        yield encode(value)
