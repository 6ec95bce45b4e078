"""Reads weights of GGUF files: floats, or quantized blocks."""

import torch
from torch import Tensor

from engine.model.formats.format import FloatFormat, StoredTensors
from engine.model.gguf.blocks import FORM_BY_TYPE, unpacked
from engine.model.quantized import Form, Weight

MAX_VALUES_UNPACKED = 1 << 24  # of an embedding, at a time


class GGUFBlocks(FloatFormat):
    """Reads the tensors that `GGUFTensor` gives."""

    packed_kinds = frozenset(FORM_BY_TYPE)

    def weight(self, stored: StoredTensors, name: str, shape: tuple[int, int]) -> Weight:
        tensor_name = f"{name}.weight"
        if not stored.holds(tensor_name) or stored.kind(tensor_name) not in FORM_BY_TYPE:
            return stored.tensor(tensor_name, shape)
        kind = stored.kind(tensor_name)
        return unpacked(kind, stored.packed(tensor_name, shape, kind), shape[1])

    def dequantize(self, stored: StoredTensors, name: str, shape: tuple[int, ...]) -> Tensor:
        kind = stored.kind(name)
        rows, values = stored.packed(name, shape, kind), torch.empty(shape)
        step = max(1, MAX_VALUES_UNPACKED // shape[-1])
        for begin in range(0, len(rows), step):
            part = unpacked(kind, rows[begin : begin + step], shape[-1])
            values[begin : begin + step] = part.dequantized()
        return values

    def weights_per_element(self, name: str, kind: str) -> tuple[Form | None, int]:
        return (None if name == "model.embed_tokens.weight" else FORM_BY_TYPE.get(kind)), 1  # an embedding is unpacked
