"""Reads 4- and 8-bit floating point weights with small groups: NVFP4 by 16, MXFP4 and MXFP8 by 32.

MX scales are powers of two in a byte, 2 ** (byte - 127) (E8M0). See the Open Compute Project's Microscaling Formats,
version 1.0, and NVIDIA's description of NVFP4, whose scales are e4m3, with one more scale for the whole weight.
"""

import torch
from torch import Tensor

from engine.model.formats.floats import FP8_DTYPE
from engine.model.formats.format import StoredTensors
from engine.model.formats.integers import refuse_indivisible
from engine.model.mxfp4 import FP4_VALUES, MX_BLOCK_VALUES
from engine.model.mxfp4 import unpacked as unpacked_mxfp4
from engine.model.quantized import Quantized

NVFP4_GROUP = 16
E8M0_DTYPE = "U8"
"""safetensors' name for the data type of powers of two, and of bytes with two fp4 codes."""


def fine_scales(stored: StoredTensors, model: str, name: str, shape: tuple[int, int]) -> Tensor:
    """Returns a layer's NVFP4 `weight_scale`, stored as e4m3, as fp32 `[out, in / 16]`."""
    outputs, inputs = shape
    refuse_indivisible(model, name, "inputs", inputs, NVFP4_GROUP)
    return stored.packed(f"{name}.weight_scale", (outputs, inputs // NVFP4_GROUP), FP8_DTYPE).float()


def nvfp4(stored: StoredTensors, name: str, shape: tuple[int, int], scales: Tensor) -> Quantized:
    """Reads the tensor `name`, uint8 `[out, in / 2]`, fp4 (e2m1) with fp32 `scales` `[out, in / 16]`.

    Twice an fp4 value is an integer, so it becomes int8, since int4 has no groups of 16.
    """
    outputs, inputs = shape
    found = stored.packed(name, (outputs, inputs // 2), "U8")
    codes = torch.stack((found & 15, found >> 4), -1).flatten(1)
    twice = torch.tensor([int(2 * value) for value in FP4_VALUES], dtype=torch.int8)
    return Quantized("int8", twice[codes.int()], scales / 2, NVFP4_GROUP)


def mxfp4(stored: StoredTensors, model: str, name: str, shape: tuple[int, int]) -> Quantized:
    """Reads uint8 `weight_packed` `[out, in / 2]`, fp4 (e2m1) with a power of two for 32 values."""
    outputs, inputs = shape
    refuse_indivisible(model, name, "inputs", inputs, MX_BLOCK_VALUES)
    found = stored.packed(f"{name}.weight_packed", (outputs, inputs // 2), "U8")
    scales = stored.packed(f"{name}.weight_scale", (outputs, inputs // MX_BLOCK_VALUES), E8M0_DTYPE)
    return unpacked_mxfp4(found.unflatten(1, (-1, MX_BLOCK_VALUES // 2)), scales)


def mxfp8(stored: StoredTensors, model: str, name: str, shape: tuple[int, int]) -> Quantized:
    """Reads `weight` `[out, in]` in e4m3, with a power of two for 32 values."""
    outputs, inputs = shape
    refuse_indivisible(model, name, "inputs", inputs, MX_BLOCK_VALUES)
    values = stored.packed(f"{name}.weight", shape, FP8_DTYPE)
    scales = stored.packed(f"{name}.weight_scale", (outputs, inputs // MX_BLOCK_VALUES), E8M0_DTYPE)
    return Quantized("fp8", values, torch.ldexp(torch.ones(scales.shape), scales.int() - 127), MX_BLOCK_VALUES)
