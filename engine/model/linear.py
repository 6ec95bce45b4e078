"""The factory of linear layers: the one place where weights are packed for the device that multiplies them.

On a CPU the native operator reads weights at the speed of memory for few rows and multiplies at the processor's for
many. Without it, oneDNN's prepacked bf16 weights run 1 to 32 rows at two to four times the speed of
`torch.nn.functional.linear`, which lays its weights out anew on every call; in fp32 the plain operator stays: it is the
reference's own.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from core.config import Quantization
from engine.backends.native.library import FORMATS, WEIGHT_FORMATS, LinearArguments
from engine.device import cpu_multiplies_bf16
from engine.model.quantization import quantized
from engine.model.weights import Checkpoint

PACKED_FOR_ROWS = 8
"""The batch that oneDNN chooses its layout for; this one serves 1 to 512 rows about as well as one of their own."""


class Linear(Protocol):
    """`y = x W^T + b`, for `x` `[rows, in]`, giving `[rows, out]`."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def held(self) -> list[Tensor]:
        """The tensors that the layer keeps in memory."""
        ...


class PlainLinear:
    """Weights as they are, `[out, in]`."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight, self._bias)

    def held(self) -> list[Tensor]:
        """Weight and bias; the weight may be another layer's too."""
        return [self._weight] if self._bias is None else [self._weight, self._bias]


class PackedLinear:
    """Weights in the blocked layout of oneDNN, which belongs to the CPU that packed it."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        operators: Any = torch.ops.mkldnn
        self._weight = operators._reorder_linear_weight(weight, PACKED_FOR_ROWS)
        self._bias = bias
        self._multiply = operators._linear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = self._multiply(x, self._weight, self._bias, "none", [], "")
        return product

    def held(self) -> list[Tensor]:
        """The packed copy and the bias."""
        return [self._weight] if self._bias is None else [self._weight, self._bias]


class NativeLinear:
    """Weights in the native operator's panels. A row's result depends on that row only; in fp32, to the bit."""

    def __init__(
        self,
        native: ctypes.CDLL,
        weight: Tensor,
        bias: Tensor | None,
        scales: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """`weight` `[out, in]` in the format of `x`; or int8 with fp32 `scales` `[out]`, for an `x` in `dtype`."""
        assert all(given is None or given.is_contiguous() for given in (weight, bias, scales))
        self._dtype = dtype or weight.dtype
        self._outputs, self._inputs = weight.shape
        formats = FORMATS[self._dtype], WEIGHT_FORMATS[weight.dtype]
        self.arguments = LinearArguments(*formats, self._outputs, self._inputs)
        self._packed = torch.empty(native.baton_packed_bytes(self.arguments), dtype=torch.uint8)
        native.baton_pack(self.arguments, weight.data_ptr(), self._packed.data_ptr())
        self.arguments.packed = self._packed.data_ptr()
        self._bias, self._scales = bias, scales
        if bias is not None:
            self.arguments.bias = bias.data_ptr()
        if scales is not None:
            self.arguments.scales = scales.data_ptr()
        self._multiply = native.baton_linear

    def __call__(self, x: Tensor) -> Tensor:
        rows, inputs = x.shape
        assert inputs == self._inputs and x.dtype == self._dtype and x.stride(1) == 1
        y = x.new_empty((rows, self._outputs))
        self._multiply(self.arguments, x.data_ptr(), x.stride(0), rows, y.data_ptr())
        return y

    def held(self) -> list[Tensor]:
        """The packed copy, the bias and the scales."""
        return [held for held in (self._packed, self._bias, self._scales) if held is not None]


class LinearFactory:
    """Makes the linear layers of one model on one device."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype,
        native: ctypes.CDLL | None = None,
        quantization: Quantization = "none",
    ) -> None:
        assert native is not None or quantization == "none", "only native layers take int8 weights"
        self._native = native
        self._quantizes = quantization == "int8"
        self._checkpoint = checkpoint
        self._device = device
        self._dtype = dtype
        self._packs = device.type == "cpu" and dtype == torch.bfloat16 and can_pack()

    def linear(self, names: Sequence[str], sizes: Sequence[int], inputs: int, bias: bool = False) -> Linear:
        """The layers `names` with `sizes` outputs each, fused into one that gives their outputs side by side."""
        weights, shapes = [f"{name}.weight" for name in names], [(size, inputs) for size in sizes]
        offset = self._stacked([f"{name}.bias" for name in names], [(size,) for size in sizes]) if bias else None
        if self._native is not None and self._quantizes:
            parts = [
                quantized(self._checkpoint.tensor(name, shape)) for name, shape in zip(weights, shapes, strict=True)
            ]
            values, scales = (torch.cat(part) for part in zip(*parts, strict=True))
            return NativeLinear(self._native, values, offset, scales, self._dtype)
        return self.of(self._stacked(weights, shapes), offset)

    def of(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """A layer of a weight that is loaded already, such as a head tied to the embedding."""
        if self._native is not None and self._quantizes:
            values, scales = quantized(weight)
            return NativeLinear(self._native, values, bias, scales, self._dtype)
        if self._native is not None:
            return NativeLinear(self._native, weight, bias)
        return PackedLinear(weight, bias) if self._packs else PlainLinear(weight, bias)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor that is no linear layer, in the model's format and on its device."""
        return self._stacked([name], [shape])

    def _stacked(self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> Tensor:
        """Tensors one below the other, converted part by part, so that no second copy of the whole is made."""
        rows = sum(shape[0] for shape in shapes)
        whole = torch.empty((rows, *shapes[0][1:]), dtype=self._dtype, device=self._device)
        begin = 0
        for name, shape in zip(names, shapes, strict=True):
            whole[begin : begin + shape[0]] = self._checkpoint.tensor(name, shape)
            begin += shape[0]
        return whole


def can_pack() -> bool:
    """True where oneDNN multiplies bf16 and PyTorch offers its packing."""
    operators: Any = torch.ops.mkldnn
    packing = hasattr(operators, "_reorder_linear_weight") and hasattr(operators, "_linear_pointwise")
    backend: Any = torch.backends.mkldnn
    return packing and bool(backend.is_available()) and cpu_multiplies_bf16()
