"""Stores vectors in a layer of a pool, and gathers its blocks, with PyTorch operators; floats or quantized.

A layer's vectors are numbered consecutively: vector v of block b is b x vectors + v.
"""

from typing import Protocol

import torch
from torch import Tensor

from engine.backends.reference.kv_rounding import dequantize, quantize
from engine.model.kv_layout import AnyAttention, QuantizedLayer, quantized_layer


class KVRows(Protocol):
    """A step's access to a layer. Vectors are floats in both directions."""

    blocks: int
    vectors: int
    block: int
    width: int
    dtype: torch.dtype  # of gathered vectors

    def clear(self, blocks: Tensor) -> None:
        """Sets blocks to zero."""
        ...

    def put(self, rows: Tensor, vectors: Tensor) -> None:
        """Stores `vectors` `[n, width]`, each for one token, at `rows` `[n]`: vector x block + offset."""
        ...

    def take(self, rows: Tensor) -> Tensor:
        """Returns whole blocks of the vectors `rows` `[n]`, as `[n, block x width]`."""
        ...


class PlainRows:
    """Implements `KVRows` over a layer `[blocks, vectors, block, width]`."""

    def __init__(self, layer: Tensor) -> None:
        self.blocks, self.vectors, self.block, self.width = layer.shape
        self.dtype = layer.dtype
        self._layer = layer

    def clear(self, blocks: Tensor) -> None:
        self._layer.index_fill_(0, blocks, 0)

    def put(self, rows: Tensor, vectors: Tensor) -> None:
        self._layer.view(-1, self.width).index_copy_(0, rows, vectors)

    def take(self, rows: Tensor) -> Tensor:
        return self._layer.view(-1, self.block * self.width).index_select(0, rows)


class QuantizedKVRows:
    """Implements `KVRows` over a quantized layer."""

    def __init__(self, layer: QuantizedLayer, dtype: torch.dtype) -> None:
        self.blocks, self.vectors, bytes_of_each = layer.memory.shape
        self.block, self.width = layer.block, sum(layer.parts)
        self.dtype = dtype
        self._form, self._parts = layer.form, layer.parts
        self._memory = layer.memory.view(-1, bytes_of_each)
        self._values = layer.values.flatten(0, 1)  # [blocks x vectors, block, width]
        self._scales = layer.scales.flatten(0, 1)  # [blocks x vectors, parts, block]

    def clear(self, blocks: Tensor) -> None:
        self._memory.view(self.blocks, -1).index_fill_(0, blocks, 0)

    def put(self, rows: Tensor, vectors: Tensor) -> None:
        values, scales = quantize(vectors, self._form, self._parts)
        at, offset = rows // self.block, rows % self.block
        self._values[at, offset] = values
        self._scales[at, :, offset] = scales

    def take(self, rows: Tensor) -> Tensor:
        found = self._memory.index_select(0, rows)
        end = self.block * self.width
        values = found[:, :end].unflatten(1, (self.block, self.width))
        scales = found[:, end:].contiguous().view(torch.bfloat16).unflatten(1, (len(self._parts), self.block))
        return dequantize(values, scales.transpose(1, 2), self._form, self._parts, self.dtype).flatten(1)


def rows_of(layer: Tensor, attention: AnyAttention, dtype: torch.dtype) -> KVRows:
    quantized = quantized_layer(layer, attention)
    return PlainRows(layer) if quantized is None else QuantizedKVRows(quantized, dtype)
