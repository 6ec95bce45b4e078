"""The formats of compressed-tensors: the weights that each may hold, and how they are unpacked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from engine.model.formats.fields import WHOLE_ROW_GROUP
from engine.model.formats.floats import Block, by_block, fp8
from engine.model.formats.format import StoredTensors
from engine.model.formats.integers import FORM_BY_BITS, integers, order_in, unpacked
from engine.model.formats.micro import fine_scales, mxfp4, mxfp8, nvfp4
from engine.model.quantized import Form, Quantized

Strategy = Literal["tensor", "channel", "group", "block"]
GROUP_STRATEGIES: dict[str, Strategy] = {"tensor": "tensor", "channel": "channel", "group": "group"}
BLOCK_STRATEGIES: dict[str, Strategy] = {"tensor": "tensor", "channel": "channel", "block": "block"}


@dataclass(frozen=True)
class Scheme:
    """How the weights of some layers are stored."""

    format: str
    type: str  # int or float
    bits: int
    strategy: Strategy  # which weights share a scale
    group: int = WHOLE_ROW_GROUP  # inputs that share a scale, for the strategy `group`
    symmetric: bool = True  # no zero points
    by_activation: bool = False  # a group's inputs are scattered
    block: Block | None = None
    meets_bytes: bool = False  # inputs are quantized like the weights, symmetric with 8 bits

    def blocks(self, shape: tuple[int, int]) -> Block:
        """Returns the outputs and inputs of a weight `[out, in]` that share a scale."""
        if self.strategy == "tensor":
            return shape
        return self.block or (1, shape[1] if self.group == WHOLE_ROW_GROUP else self.group)

    def weights_per_element(self, kind: str) -> tuple[Form | None, int]:
        """Returns the quantization format and the number of weights in one element stored as `kind`."""
        if kind == "U8":
            return ("int8" if self.format == "nvfp4-pack-quantized" else "int4"), 2
        return FORM_BY_BITS[self.bits], 32 // self.bits


Reader = Callable[[StoredTensors, str, str, tuple[int, int], Scheme], Quantized]
"""Reads a layer's weight, given tensors, model name, layer name, the weight's shape, and the scheme."""


@dataclass(frozen=True)
class PackedFormat:
    """The weights that a format may hold, and its reader."""

    read: Reader
    types: tuple[str, ...]
    bits: tuple[int, ...]
    strategies: Mapping[str, Strategy]


def read_packed(stored: StoredTensors, model: str, name: str, shape: tuple[int, int], scheme: Scheme) -> Quantized:
    """Reads int32 `weight_packed` `[out, in x bits / 32]`, codes of neighbouring inputs in a word."""
    (outputs, inputs), bits = shape, scheme.bits
    words = stored.packed(f"{name}.weight_packed", (outputs, -(-inputs * bits // 32)), "I32")
    group = min(scheme.blocks(shape)[1], inputs)
    scales = by_block(stored, model, f"{name}.weight_scale", shape, scheme.blocks(shape))
    codes, zeros = unpacked(words, bits)[:, :inputs], torch.full_like(scales, 1 << bits - 1)
    if not scheme.symmetric:
        zeros = _zeros(stored, f"{name}.weight_zero_point", scales, bits)
    order = None
    if scheme.by_activation:
        order = order_in(stored, model, f"{name}.weight_g_idx", group, inputs)
    return integers(codes if order is None else codes[:, order], zeros, scales, group, bits, order)


def _zeros(stored: StoredTensors, name: str, scales: Tensor, bits: int) -> Tensor:
    """Returns the zero points `[out, groups]`: packed by outputs, or, until version 0.9, signed bytes."""
    outputs, groups = scales.shape
    if stored.kind(name) == "I8":
        return stored.packed(name, (outputs, groups), "I8").int() + (1 << bits - 1)
    words = stored.packed(name, (-(-outputs * bits // 32), groups), "I32")
    return unpacked(words.t(), bits).t()[:outputs]


def read_bytes(stored: StoredTensors, model: str, name: str, shape: tuple[int, int], scheme: Scheme) -> Quantized:
    """Reads `weight` `[out, in]` in int8 or fp8."""
    block = scheme.blocks(shape)
    if scheme.type == "float":
        return fp8(stored, model, name, shape, "weight_scale", block, scheme.meets_bytes)
    values = stored.packed(f"{name}.weight", shape, "I8")
    scales, offsets = by_block(stored, model, f"{name}.weight_scale", shape, block), None
    if not scheme.symmetric:
        offsets = -by_block(stored, model, f"{name}.weight_zero_point", shape, block, "I8") * scales
    return Quantized("int8", values, scales, min(block[1], shape[1]), offsets, meets_bytes=scheme.meets_bytes)


def read_nvfp4(stored: StoredTensors, model: str, name: str, shape: tuple[int, int], scheme: Scheme) -> Quantized:
    """Reads NVFP4, divided by `weight_global_scale`."""
    fine, coarse = fine_scales(stored, model, name, shape), stored.tensor(f"{name}.weight_global_scale", (1,))
    return nvfp4(stored, f"{name}.weight_packed", shape, fine / coarse.float())


def read_mxfp4(stored: StoredTensors, model: str, name: str, shape: tuple[int, int], scheme: Scheme) -> Quantized:
    return mxfp4(stored, model, name, shape)


def read_mxfp8(stored: StoredTensors, model: str, name: str, shape: tuple[int, int], scheme: Scheme) -> Quantized:
    return mxfp8(stored, model, name, shape)


PACKED_FORMATS = {
    "pack-quantized": PackedFormat(read_packed, ("int",), (4, 8), GROUP_STRATEGIES),
    "int-quantized": PackedFormat(read_bytes, ("int",), (8,), GROUP_STRATEGIES),
    "float-quantized": PackedFormat(read_bytes, ("float",), (8,), {**GROUP_STRATEGIES, **BLOCK_STRATEGIES}),
    "naive-quantized": PackedFormat(read_bytes, ("int", "float"), (8,), {**GROUP_STRATEGIES, **BLOCK_STRATEGIES}),
    "nvfp4-pack-quantized": PackedFormat(read_nvfp4, ("float",), (4,), {"tensor_group": "group"}),
    "mxfp4-pack-quantized": PackedFormat(read_mxfp4, ("float",), (4,), {"group": "group"}),
    "mxfp8-quantized": PackedFormat(read_mxfp8, ("float",), (8,), {"group": "group"}),
}
