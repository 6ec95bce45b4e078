"""Gives the tensors of GGUF files by the names, in the shapes and in the order of rows of Hugging Face's."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from checkpoints.gguf.architectures import WHOLE, Architecture
from checkpoints.gguf.config import architecture_of
from checkpoints.gguf.header import Header, StoredTensor, read_header
from contracts.errors import ModelError

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
IN_CONFIG = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that the config has taken."""
PERMUTED = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
"""What has rows in pairs of neighbours, and how many heads it has."""


class GGUFTensor:
    """Gives a tensor, or one expert's part of it; nothing is read before it is asked for."""

    def __init__(self, data: Tensor, stored: StoredTensor, expert: int | None, heads: int, offset: float) -> None:
        """Describes a part of a file, `data`. Rows of `heads` heads, if any, are put in order; `offset` is added."""
        self._data = data
        self._stored = stored
        self._expert = expert
        self._heads = heads
        self._offset = offset

    def get_dtype(self) -> str:
        """Returns what numbers are stored as."""
        return self._stored.kind.name

    def get_shape(self) -> tuple[int, ...]:
        """Returns the shape in numbers."""
        return self._stored.shape if self._expert is None else self._stored.shape[1:]

    def get_tensor(self, name: str) -> Tensor:
        """Returns the numbers, or of a quantized tensor the bytes: uint8 `[out, bytes of a row]`."""
        stored, kind = self._stored, self._stored.kind
        whole = self._data[stored.begin : stored.begin + stored.size]
        if self._expert is not None:
            whole = whole.view(stored.shape[0], -1)[self._expert]
        shape = self.get_shape()
        if kind.name in FLOATS:
            found = whole.clone().view(FLOATS[kind.name]).view(shape)  # a file's tensors may lie at odd addresses
        else:
            found = whole.view(*shape[:-1], shape[-1] // kind.block * kind.size)
        if self._heads:
            found = in_halves(found, self._heads)
        if self._offset:
            found += self._offset
        return found

    def get_slice(self, name: str) -> "GGUFTensor":
        """Returns itself: what is known of a tensor before it is read."""
        return self

    def __getitem__(self, index: int) -> Tensor:
        return self.get_tensor("")[index]


def in_halves(rows: Tensor, heads: int) -> Tensor:
    """Reorders each head's rows from pairs of neighbours to pairs that are half a head apart."""
    found: Tensor = rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
    return found


def read_tensors(paths: list[Path], config: dict[str, Any]) -> dict[str, GGUFTensor]:
    """Maps files into memory, and returns their tensors by the names of Hugging Face's checkpoints.

    Raises `ModelError` for a file that is broken, and for a tensor that the architecture has no name for.
    """
    headers = [read_header(path) for path in paths]
    architecture = architecture_of(headers[0], paths[0].name)
    found: dict[str, GGUFTensor] = {}
    for path, header in zip(paths, headers, strict=True):
        try:
            data = torch.from_numpy(np.memmap(path, np.uint8, "c"))
        except OSError as error:
            raise ModelError(f"{path.name} cannot be read: {error.strerror}") from None
        found |= _named(header, data, architecture, config)
    return found


def _named(header: Header, data: Tensor, architecture: Architecture, config: dict[str, Any]) -> dict[str, GGUFTensor]:
    found = {}
    for name, stored in header.tensors.items():
        if name in IN_CONFIG:
            continue
        stem, _, ending = name.rpartition(".")
        kind = stem.rpartition(".")[2]
        heads = int(config[PERMUTED[kind]]) if architecture.permuted and kind in PERMUTED else 0
        offset = -architecture.norm_offset if stem.endswith("norm") else 0.0
        theirs = name_of(stem, architecture)
        if "{}" in theirs:
            for expert in range(stored.shape[0]):
                found[f"{theirs.format(expert)}.{ending}"] = GGUFTensor(data, stored, expert, heads, offset)
            continue
        if kind == "ffn_gate_inp_shexp" and len(stored.shape) == 1:
            stored = StoredTensor(stored.kind, (1, *stored.shape), stored.begin)
        found[f"{theirs}.{ending}"] = GGUFTensor(data, stored, None, heads, offset)
    return found


def name_of(stem: str, architecture: Architecture) -> str:
    """Returns what a tensor is called in Hugging Face's checkpoints; what is unknown keeps its name."""
    if stem in WHOLE:
        return WHOLE[stem]
    blk, _, rest = stem.partition(".")
    layer, _, kind = rest.partition(".")
    if blk != "blk" or kind not in architecture.names:
        return stem
    return f"model.layers.{layer}.{architecture.names[kind]}"
