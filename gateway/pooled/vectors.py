"""Operations on the vectors of texts: shortening, base64, cosine. Vectors are fp32 in little-endian bytes."""

import base64
import sys
from array import array
from collections.abc import Iterable, Iterator
from math import sqrt


def numbers(vector: bytes) -> list[float]:
    """Returns the values of a vector."""
    found = array("f", vector)
    if sys.byteorder == "big":
        found.byteswap()
    return found.tolist()


def in_base64(vector: bytes) -> str:
    return base64.b64encode(vector).decode()


def shortened(vector: bytes, dimensions: int, *, normalized: bool) -> bytes:
    """Returns the first values of a vector, of length 1 if vectors are `normalized`."""
    first = array("f", numbers(vector)[:dimensions])
    if normalized and (length := sqrt(sum(value * value for value in first))) > 0:
        first = array("f", [value / length for value in first])
    if sys.byteorder == "big":
        first.byteswap()
    return first.tobytes()


def likenesses(pairs: Iterable[tuple[bytes, bytes]]) -> Iterator[float]:
    """Yields the cosine of the angle between the two vectors of each pair; 0 if one of them is 0."""
    import numpy as np

    for left, right in pairs:
        one, other = np.frombuffer(left, "<f4"), np.frombuffer(right, "<f4")
        lengths = float(np.sqrt(one.dot(one) * other.dot(other)))
        yield float(one.dot(other)) / lengths if lengths else 0.0
