"""Reads the header of a GGUF file: its metadata, and where each tensor lies.

The `gguf` package reads the format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Two of its internal
methods are overridden: it loops over lengths that a broken file claims, beyond the file's end, and it makes an array of
each of a vocabulary's 400,000 words and merges, which takes 15 times as long.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType
from gguf.gguf_reader import ReaderField, ReaderTensor
from msgspec import Struct

from contracts.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
SERVED_TYPES = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "MXFP4"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"),
)
PREFIX = struct.Struct("<4sI")  # magic and version
STRING_LENGTH = struct.Struct("<Q")
ARRAY_PREFIX_BYTES = 12  # type and count of the elements


class Header(Struct, frozen=True):
    """Metadata and tensors of one file; the tensors' `data` are mapped into memory, copy-on-write."""

    metadata: dict[str, Any]
    tensors: dict[str, ReaderTensor]  # their `shape` counts inputs before outputs, `data.shape` is as PyTorch's


def read_header(path: Path) -> Header:
    """Reads the header of a file, and checks that all tensors are inside the file.

    Raises `ModelError` for a file that is no GGUF, of another version, cut off, or has tensors of a type not served.
    """
    name = path.name
    try:
        with path.open("rb") as file:
            prefix = file.read(PREFIX.size)
        magic, version = PREFIX.unpack(prefix.ljust(PREFIX.size, b"\0"))
        if magic != MAGIC:
            raise ModelError(f"{name} is not a GGUF file: it does not begin with {MAGIC.decode()}")
        if len(prefix) < PREFIX.size:
            raise _CutOff(PREFIX.size - len(prefix))
        if version not in VERSIONS:
            known = " and ".join(map(str, VERSIONS))
            raise ModelError(f"{name} is GGUF of version {version}; versions {known} are served")
        with np.errstate(over="raise"):
            reader = _BoundedReader(path, "c")
    except _CutOff as error:
        raise ModelError(f"{name} was cut off: at least {error} bytes are missing") from None
    except OSError as error:
        raise ModelError(f"{name} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, ArithmeticError) as error:
        raise ModelError(f"{name} is a broken GGUF file: {error}") from None
    for tensor in reader.tensors:
        if tensor.tensor_type.name not in SERVED_TYPES:
            kind, served = tensor.tensor_type.name, ", ".join(SERVED_TYPES)
            raise ModelError(f"{name}: {tensor.name} is stored as type {kind}; supported: {served}")
    metadata = {key: _value(field) for key, field in reader.fields.items()}
    return Header(metadata, {tensor.name: tensor for tensor in reader.tensors})


class _CutOff(Exception):
    """Something lies beyond the file's end; the argument is the number of missing bytes."""


class _BoundedReader(GGUFReader):  # type: ignore[misc]
    """Raises `_CutOff` for data beyond the file's end, and decodes an array as a whole."""

    def _get(self, offset: int, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
        self._refuse_beyond(int(offset) + np.dtype(dtype).itemsize * int(count))
        return super()._get(offset, dtype, count, override_order)

    def _refuse_beyond(self, end: int) -> None:
        if end > len(self.data):
            raise _CutOff(end - len(self.data))

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        if raw_type != GGUFValueType.ARRAY:
            parts: tuple[int, list[Any], list[int], list[Any]] = super()._get_field_parts(orig_offs, raw_type)
            return parts
        inner = GGUFValueType(int(self._get(orig_offs, np.uint32)[0]))
        count = int(self._get(orig_offs + 4, np.uint64)[0])
        begin = orig_offs + ARRAY_PREFIX_BYTES
        if inner in self.gguf_scalar_to_np:
            values = self._get(begin, self.gguf_scalar_to_np[inner], count)
            return ARRAY_PREFIX_BYTES + values.nbytes, [values.tolist()], [0], [GGUFValueType.ARRAY, inner]
        if inner != GGUFValueType.STRING:
            raise ValueError(f"an array of arrays at byte {orig_offs}")
        words, at, data = [], begin, memoryview(self.data)
        for _ in range(count):
            self._refuse_beyond(at + STRING_LENGTH.size)
            (length,) = STRING_LENGTH.unpack_from(data, at)
            at += STRING_LENGTH.size + length
            self._refuse_beyond(at)
            words.append(str(data[at - length : at], errors="replace"))
        return at - orig_offs, [words], [0], [GGUFValueType.ARRAY, inner]


def _value(field: ReaderField) -> Any:
    kind, found = field.types[0], field.parts[-1]
    if kind == GGUFValueType.ARRAY:
        return found
    if kind == GGUFValueType.STRING:
        return found.tobytes().decode(errors="replace")
    return _shortest(found[0]) if kind == GGUFValueType.FLOAT32 else found.tolist()[0]


def _shortest(value: np.float32) -> float:
    """Returns the shortest decimal that fp32 rounds to `value`, such as 1e-06: the value as it was written."""
    return float(np.format_float_scientific(value))
