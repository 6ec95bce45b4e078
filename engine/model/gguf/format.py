"""Reads weights of GGUF files: floats, or quantized blocks."""

import torch
from torch import Tensor

from engine.model.formats.format import Plain, StoredTensors
from engine.model.gguf.blocks import FORM_BY_TYPE, unpacked
from engine.model.quantized import Form, Weight

MAX_VALUES_UNPACKED = 1 << 24  # of an embedding, at a time


class Blocks(Plain):
    """Reads the tensors that `GGUFTensor` gives."""

    packs = frozenset(FORM_BY_TYPE)

    def weight(self, stored: StoredTensors, name: str, shape: tuple[int, int]) -> Weight:
        whole = f"{name}.weight"
        if not stored.holds(whole) or stored.kind(whole) not in FORM_BY_TYPE:
            return stored.tensor(whole, shape)
        kind = stored.kind(whole)
        return unpacked(kind, stored.packed(whole, shape, kind), shape[1])

    def numbers(self, stored: StoredTensors, name: str, shape: tuple[int, ...]) -> Tensor:
        kind = stored.kind(name)
        rows, found = stored.packed(name, shape, kind), torch.empty(shape)
        step = max(1, MAX_VALUES_UNPACKED // shape[-1])
        for begin in range(0, len(rows), step):
            part = unpacked(kind, rows[begin : begin + step], shape[-1])
            found[begin : begin + step] = part.dequantized()
        return found

    def stands_for(self, name: str, kind: str) -> tuple[Form | None, int]:
        return (None if name == "model.embed_tokens.weight" else FORM_BY_TYPE.get(kind)), 1  # an embedding is unpacked
