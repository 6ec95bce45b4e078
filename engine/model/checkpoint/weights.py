"""Reads a checkpoint's tensors by name from safetensors files, and computes a digest of them."""

import errno
import hashlib
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from checkpoints.weight_files import present_weight_files
from contracts.errors import ModelError
from engine.model.formats.format import FloatFormat, WeightFormat
from engine.model.quantized import Form, Weight
from infra.sizes import format_bytes

FLOAT_DTYPES = {"F32", "BF16", "F16"}
PACKED_DTYPE = "U8"
"""Data type of MXFP4 blocks and their scales."""
DIGEST_RUNS = 32
"""Sampled runs of each tensor in the digest."""
DIGEST_RUN_VALUES = 1024


class Checkpoint:
    """The tensors of a model directory, mapped into memory and read on demand."""

    def __init__(
        self, directory: Path, format: WeightFormat | None = None, files: Mapping[str, Any] | None = None
    ) -> None:
        """Opens the safetensors files; `format` None means floats.

        `files` replaces them: objects with the methods of a safetensors file, by tensor name. Raises `ModelError` if
        files are missing, truncated or not safetensors.
        """
        self._name = directory.name
        self._format = format or FloatFormat()
        self._files: dict[str, Any] = dict(files or {})
        self._unused: set[str] = set()
        for path, promised in present_weight_files(directory).items() if files is None else ():
            with _clear_errors(path), _mapping(path):
                opened: Any = safe_open(str(path), framework="pt")
                names = set(opened.keys())
            missing = sorted(promised - names)
            if missing:
                raise ModelError(f"{path.name} lacks {missing[0]}, which the index promises")
            self._files.update(dict.fromkeys(names, opened))
        self._unused = set(self._files)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Returns a tensor in the file's float format. Raises `ModelError` if it is missing or has another shape."""
        if name in self._files and self.kind(name) in self._format.packed_kinds:
            return self._format.dequantize(self, name, shape)
        self._view(name, shape)
        with _clear_errors(self._name):
            tensor: Tensor = self._files[name].get_tensor(name)
        return tensor

    def weight(self, name: str, shape: tuple[int, int]) -> Weight:
        """Returns the weight `[out, in]` of the linear layer `name`, by the checkpoint's format.

        Raises `ModelError` if one of its tensors is missing or has another shape.
        """
        return self._format.weight(self, name, shape)

    def packed(self, name: str, shape: tuple[int, ...], kind: str) -> Tensor:
        """Returns the raw tensor, which must be stored as `kind`, such as I32.

        Raises `ModelError` if it is missing, or has another shape or kind.
        """
        self._view(name, shape, {kind})
        with _clear_errors(self._name):
            tensor: Tensor = self._files[name].get_tensor(name)
        return tensor

    def names(self) -> list[str]:
        return sorted(self._files)

    def weights_per_element(self, name: str) -> tuple[Form | None, int]:
        """Returns a tensor's quantization format (None: floats), and how many weights one of its elements has."""
        return self._format.weights_per_element(name, self.kind(name))

    def holds(self, name: str) -> bool:
        return name in self._files

    def kind(self, name: str) -> str:
        """Returns the stored data type, such as BF16. Raises `ModelError` if the tensor is missing."""
        with _clear_errors(self._name):
            return str(self._slice(name).get_dtype())

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the stored shape. Raises `ModelError` if the tensor is missing."""
        with _clear_errors(self._name):
            return tuple(self._slice(name).get_shape())

    def part(self, name: str, shape: tuple[int, ...], index: int, *, packed: bool = False) -> Tensor:
        """Returns `tensor(name, shape)[index]` without reading the rest; `packed` allows uint8 tensors."""
        view = self._view(name, shape, {PACKED_DTYPE} if packed else FLOAT_DTYPES)
        with _clear_errors(self._name):
            tensor: Tensor = view[index]
        return tensor

    def _view(self, name: str, shape: tuple[int, ...], kinds: set[str] = FLOAT_DTYPES) -> Any:
        with _clear_errors(self._name):
            view = self._slice(name)
            found, kind = tuple(view.get_shape()), view.get_dtype()
        if found != shape:
            raise ModelError(f"{self._name}: {name} has shape {list(found)}, but the config says {list(shape)}")
        if kind not in kinds:
            raise ModelError(f"{self._name}: {name} is stored as {kind}; supported: {', '.join(sorted(kinds))}")
        self._unused.discard(name)
        return view

    def _slice(self, name: str) -> Any:
        if name not in self._files:
            raise ModelError(f"{self._name}: the weights lack {name}")
        return self._files[name].get_slice(name)

    def parameters(self) -> Counter[Form | None]:
        """Counts the weights of all tensors by quantization format; None: floats."""
        found: Counter[Form | None] = Counter()
        for name in self._files:
            form, weights = self.weights_per_element(name)
            found[form] += weights * math.prod(self.shape(name))
        return found

    def pass_over(self, name: str) -> None:
        """Marks the tensors of `name`, which another rank holds, as used."""
        self._unused -= {each for each in self._unused if each == name or each.startswith(f"{name}.")}

    def refuse_unused(self, endings: tuple[str, ...] = (), beginnings: tuple[str, ...] = ()) -> None:
        """Raises `ModelError` if a tensor was never read: the config would leave out a part of the model.

        Ignores names with these suffixes (such as buffers in old checkpoints) or prefixes, and tensors that the format
        knows to be irrelevant.
        """
        there = sorted(name for name in self._unused if not name.endswith(endings) and not name.startswith(beginnings))
        left = [name for name in there if not self._format.is_irrelevant(self, name)]
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            raise ModelError(f"{self._name}: the config has no place for the weight {left[0]}{more}")

    def digest(self, salt: bytes = b"") -> str:
        """Returns 32 hexadecimal digits: SHA-256 of each tensor's name, format, shape and a sample of its values.

        Reading all of a large model would take tens of seconds. Training, merging or converting changes values all over
        a tensor, so evenly spread samples notice it. Edits of single values are no threat here, since both ends of a
        handoff belong to one deployment. A sharded copy has the same digest.
        """
        total = hashlib.sha256(salt + self._format.settings())
        for name in sorted(self._files):
            with _clear_errors(self._name):
                values = self._files[name].get_tensor(name).reshape(-1)
                view = self._files[name].get_slice(name)
                total.update(f"{name} {view.get_dtype()} {view.get_shape()}\n".encode())
            for start in _starts(values.numel()):
                total.update(values[start : start + DIGEST_RUN_VALUES].view(torch.uint8).numpy())
        return total.hexdigest()[:32]


def _starts(count: int) -> list[int]:
    """Returns the beginnings of the sampled runs, evenly spread; a small tensor is sampled completely."""
    if count <= DIGEST_RUNS * DIGEST_RUN_VALUES:
        return list(range(0, count, DIGEST_RUN_VALUES))
    return [index * (count - DIGEST_RUN_VALUES) // (DIGEST_RUNS - 1) for index in range(DIGEST_RUNS)]


@contextmanager
def _clear_errors(source: Path | str) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError) as error:
        name = source.name if isinstance(source, Path) else source
        raise ModelError(f"{name} is broken or truncated: {str(error).strip() or type(error).__name__}") from None


@contextmanager
def _mapping(path: Path) -> Iterator[None]:
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if os.strerror(errno.ENOMEM) not in str(error):
            raise
        size = format_bytes(path.stat().st_size)
        raise ModelError(
            f"{path.name} has {size}, and this machine has no memory to map it; a smaller model may fit"
        ) from None
