"""Gives the tensors of GGUF files by Hugging Face's names, in Hugging Face's shapes and order of rows."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf.quants import quant_shape_from_byte_shape
from torch import Tensor

from checkpoints.gguf.architectures import MODEL_TENSORS, SINKS, Architecture
from checkpoints.gguf.config import Metadata, architecture_of
from checkpoints.gguf.header import Header, read_header

ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that are part of the config already."""
PERMUTED_HEADS = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
"""Tensors whose rows may be in neighbouring pairs, with the config field that counts their heads."""


class GGUFTensor:
    """A tensor of a mapped file, with the methods of a safetensors file that `Checkpoint` uses.

    `data` is typed for F32 and F16, else uint8 `[..., bytes of a row]`. Rows of `heads` heads, unless 0, are put in
    order; `offset` is added to the values.
    """

    def __init__(self, data: Any, kind: Any, heads: int, offset: float) -> None:
        self._data = data
        self._kind = kind  # gguf.GGMLQuantizationType
        self._heads = heads
        self._offset = offset

    def get_dtype(self) -> str:
        return str(self._kind.name)

    def get_shape(self) -> tuple[int, ...]:
        shape = self._data.shape
        return tuple(quant_shape_from_byte_shape(shape, self._kind) if self._data.dtype == np.uint8 else shape)

    def get_tensor(self, name: str) -> Tensor:
        """Returns the values, or of a quantized tensor the bytes: uint8 `[out, bytes of a row]`."""
        if self._data.dtype != np.uint8:
            tensor = torch.from_numpy(np.array(self._data))  # a copy, since addresses in the file may be odd
        elif self.get_dtype() == "BF16":
            tensor = torch.from_numpy(np.array(self._data)).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(self._data)
        if self._heads:
            tensor = in_halves(tensor, self._heads)
        if self._offset:
            tensor += self._offset
        return tensor

    def get_slice(self, name: str) -> "GGUFTensor":
        return self

    def __getitem__(self, index: int) -> Tensor:
        return self.get_tensor("")[index]


def in_halves(rows: Tensor, heads: int) -> Tensor:
    """Reorders each head's rows from neighbouring pairs to pairs that are half a head apart."""
    halves: Tensor = rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
    return halves


def read_tensors(paths: list[Path], config: dict[str, Any]) -> dict[str, GGUFTensor]:
    """Maps files into memory, and returns their tensors by Hugging Face's names.

    Raises `ModelError` for a file that is broken or not supported.
    """
    headers = [read_header(path) for path in paths]
    architecture = architecture_of(Metadata(headers[0], paths[0].name))
    return {name: tensor for header in headers for name, tensor in _named(header, architecture, config).items()}


def _named(header: Header, architecture: Architecture, config: dict[str, Any]) -> dict[str, GGUFTensor]:
    tensors = {}
    for name, stored in header.tensors.items():
        if name in ROPE_TENSORS:
            continue
        stem, _, suffix = name.rpartition(".")
        part = stem.rpartition(".")[2]
        heads = int(config[PERMUTED_HEADS[part]]) if architecture.permuted and part in PERMUTED_HEADS else 0
        offset = -architecture.norm_offset if stem.endswith("norm") else 0.0
        data, kind, target = stored.data, stored.tensor_type, hugging_face_name(stem, architecture)
        if "{}" in target:
            for expert in range(len(data)):
                tensors[f"{target.format(expert)}.{suffix}"] = GGUFTensor(data[expert], kind, heads, offset)
            continue
        if part == "ffn_gate_inp_shexp" and data.ndim == 1:
            data = data[None]
        tensors[target if target.endswith(SINKS) else f"{target}.{suffix}"] = GGUFTensor(data, kind, heads, offset)
    return tensors


def hugging_face_name(stem: str, architecture: Architecture) -> str:
    """Returns the name of a tensor, without `.weight`, in Hugging Face's checkpoints; unknown names stay."""
    if stem in MODEL_TENSORS:
        return MODEL_TENSORS[stem]
    blk, _, rest = stem.partition(".")
    layer, _, part = rest.partition(".")
    if blk != "blk" or part not in architecture.tensors:
        return stem
    return f"model.layers.{layer}.{architecture.tensors[part]}"
