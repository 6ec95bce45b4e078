"""Reads the head of a GGUF file: its metadata, and where each tensor lies.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The `gguf` package makes an array of each of a
vocabulary's 150,000 words, which takes seconds, and brings packages along that the gateway does without.
"""

import math
import mmap
import struct
from pathlib import Path
from typing import Any

from msgspec import Struct

from checkpoints.gguf.kinds import KINDS, OTHERS, Kind
from contracts.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
MOST_DIMENSIONS = 4


class StoredTensor(Struct, frozen=True):
    """Says where a tensor lies, and what it is; `shape` counts outputs before inputs, as PyTorch does."""

    kind: Kind
    shape: tuple[int, ...]
    begin: int  # bytes from the file's beginning

    @property
    def size(self) -> int:
        """Returns the bytes of the tensor."""
        return math.prod(self.shape) // self.kind.block * self.kind.size


class Header(Struct, frozen=True):
    """Holds what a file says of itself."""

    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]


def read_header(path: Path) -> Header:
    """Reads the head of a file, all of whose tensors are found to be there.

    Raises `ModelError` for what is no GGUF, of another version, cut off, or stored as a type that is not served.
    """
    try:
        with path.open("rb") as file:
            if path.stat().st_size < len(MAGIC) or file.read(len(MAGIC)) != MAGIC:
                raise ModelError(f"{path.name} is not a GGUF file: it does not begin with {MAGIC.decode()}")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(data, path.name).header()
    except OSError as error:
        raise ModelError(f"{path.name} cannot be read: {error.strerror}") from None


def _shortest(value: float) -> float:
    """Returns the number of fewest digits that fp32 rounds to `value`: what was written, such as 1e-06."""
    single = struct.pack("<f", value)
    return next(
        number for digits in range(6, 10) if struct.pack("<f", number := float(f"{value:.{digits}g}")) == single
    )


class _Reader:
    """Reads one value after the other."""

    def __init__(self, data: mmap.mmap, name: str) -> None:
        self._data = data
        self._name = name
        self._at = len(MAGIC)

    def header(self) -> Header:
        try:
            version = self._scalar("I")
            if version not in VERSIONS:
                known = " and ".join(map(str, VERSIONS))
                raise ModelError(f"{self._name} is GGUF of version {version}; versions {known} are served")
            tensors, pairs = self._scalar("Q"), self._scalar("Q")
            metadata = dict(self._pair() for _ in range(pairs))
            infos = [self._tensor() for _ in range(tensors)]
        except struct.error:
            raise ModelError(f"{self._name} was cut off in its header, at byte {len(self._data)}") from None
        return Header(metadata, self._placed(infos, metadata.get("general.alignment", 32)))

    def _scalar(self, kind: str) -> Any:
        return self._several(kind, 1)[0]

    def _several(self, kind: str, count: int) -> tuple[Any, ...]:
        size = struct.calcsize(f"<{kind}") * count
        if size > len(self._data) - self._at:
            raise struct.error
        values = struct.unpack_from(f"<{count}{kind}", self._data, self._at)
        self._at += size
        return values

    def _string(self) -> str:
        length = self._scalar("Q")
        if length > len(self._data) - self._at:
            raise struct.error
        self._at += length
        return self._data[self._at - length : self._at].decode(errors="replace")

    def _pair(self) -> tuple[str, Any]:
        key = self._string()
        return key, self._value(key, self._scalar("I"))

    def _value(self, key: str, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind in SCALARS:
            value = self._scalar(SCALARS[kind])
            return _shortest(value) if SCALARS[kind] == "f" else value
        if kind != ARRAY:
            raise ModelError(f"{self._name}: {key} is of the unknown type {kind}")
        inner, count = self._scalar("I"), self._scalar("Q")
        if inner in SCALARS:
            return list(self._several(SCALARS[inner], count))
        if inner != STRING:
            raise ModelError(f"{self._name}: {key} is a list of the type {inner}, which is not known")
        return [self._string() for _ in range(count)]

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name, dimensions = self._string(), self._scalar("I")
        if dimensions > MOST_DIMENSIONS:
            raise ModelError(f"{self._name}: {name} has {dimensions} dimensions; at most {MOST_DIMENSIONS} are read")
        return name, self._several("Q", dimensions)[::-1], self._scalar("I"), self._scalar("Q")

    def _placed(self, infos: list[tuple[str, tuple[int, ...], int, int]], alignment: Any) -> dict[str, StoredTensor]:
        if not isinstance(alignment, int) or alignment < 1:
            raise ModelError(f"{self._name}: general.alignment is {alignment!r}; it is a number of bytes")
        begin = -(-self._at // alignment) * alignment
        found = {}
        for name, shape, number, offset in infos:
            if number not in KINDS:
                kind, served = OTHERS.get(number, str(number)), ", ".join(kind.name for kind in KINDS.values())
                raise ModelError(f"{self._name}: {name} is stored as type {kind}; supported: {served}")
            if not shape or shape[-1] % KINDS[number].block:
                raise ModelError(f"{self._name}: {name} {list(shape)} has no whole blocks of {KINDS[number].name}")
            found[name] = StoredTensor(KINDS[number], shape, begin + offset)
        missing = max((tensor.begin + tensor.size for tensor in found.values()), default=0) - len(self._data)
        if missing > 0:
            raise ModelError(f"{self._name} was cut off: {missing} bytes are missing")
        return found
