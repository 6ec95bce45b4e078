"""Packs token ids as int32, little-endian.

Making a list of ints takes 16 ns per id. So long prompts come in pieces, between which an event loop does other work,
or are packed and unpacked on the engine's thread.
"""

from array import array
from collections.abc import Sequence

IDS_PER_PIECE = 16_384  # ids in one message; packing or unpacking takes a quarter of a millisecond
_INT32_TYPECODE = "i"  # C int: 4 bytes on every supported system
ID_BYTES = array(_INT32_TYPECODE).itemsize


def packed(ids: Sequence[int]) -> bytes:
    """Packs ids piece by piece, so that other threads can run in between."""
    return b"".join(
        [
            array(_INT32_TYPECODE, ids[begin : begin + IDS_PER_PIECE]).tobytes()
            for begin in range(0, len(ids), IDS_PER_PIECE)
        ]
    )


def unpacked(data: bytes) -> list[int]:
    """Unpacks ids of `ID_BYTES` each, piece by piece, so that other threads can run in between."""
    found: list[int] = []
    for begin in range(0, len(data), ID_BYTES * IDS_PER_PIECE):
        found += array(_INT32_TYPECODE, data[begin : begin + ID_BYTES * IDS_PER_PIECE]).tolist()
    return found
