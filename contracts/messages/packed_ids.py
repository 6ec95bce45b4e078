"""Packs token ids: 4 bytes each, little-endian, as numbers of arrays lie in memory.

Making a list of ints takes 16 ns for each, whatever it is made from. So what is long comes in pieces, between which an
event loop does other things, or is packed and unpacked by a thread that runs steps, and the loop sees bytes only.
"""

from array import array
from collections.abc import Sequence

IDS_PER_PIECE = 16_384  # ids in one message, which are packed, or unpacked, in a quarter of a millisecond
_INT32_TYPECODE = "i"  # of C: 4 bytes on every system that we run on
ID_BYTES = array(_INT32_TYPECODE).itemsize


def packed(ids: Sequence[int]) -> bytes:
    """Returns the bytes of ids; between pieces another thread may have its turn."""
    return b"".join(
        [
            array(_INT32_TYPECODE, ids[begin : begin + IDS_PER_PIECE]).tobytes()
            for begin in range(0, len(ids), IDS_PER_PIECE)
        ]
    )


def unpacked(data: bytes) -> list[int]:
    """Returns the ids that bytes stand for, `ID_BYTES` bytes each; between pieces another thread may have its turn."""
    found: list[int] = []
    for begin in range(0, len(data), ID_BYTES * IDS_PER_PIECE):
        found += array(_INT32_TYPECODE, data[begin : begin + ID_BYTES * IDS_PER_PIECE]).tolist()
    return found
