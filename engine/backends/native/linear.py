"""Multiplies by the native operator: at the speed of memory for few rows, at the processor's for many."""

import ctypes

import torch
from torch import Tensor

from core.errors import NativeError
from engine.backends.native.library import FORMATS, WEIGHT_FORMATS, LinearArguments

CPU = torch.device("cpu")


class NativeLinear:
    """Multiplies by weights in the native operator's panels.

    A row's result depends on that row only; in fp32, to the bit.
    """

    def __init__(
        self,
        native: ctypes.CDLL,
        weight: Tensor,
        bias: Tensor | None,
        scales: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Packs `weight` `[out, in]` in the format of `x`, or int8 with fp32 `scales` `[out]` for an `x` in `dtype`."""
        assert all(given is None or given.is_contiguous() for given in (weight, bias, scales))
        self._dtype = dtype or weight.dtype
        self._outputs, self._inputs = weight.shape
        self.arguments = LinearArguments(
            FORMATS[self._dtype], WEIGHT_FORMATS[weight.dtype], self._outputs, self._inputs
        )
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
        """Returns the packed copy, the bias and the scales."""
        return [held for held in (self._packed, self._bias, self._scales) if held is not None]


def prove(native: ctypes.CDLL) -> None:
    """Multiplies whole numbers whose sums are exact: what this compiler made for this processor has to get them right.

    Raises `NativeError` where it does not: then PyTorch's operators serve.
    """
    rows, outputs, inputs = 39, 70, 227  # whole tiles, and rests of every kind
    x = (torch.arange(rows * inputs) % 7 - 3).view(rows, inputs)
    weight = (torch.arange(outputs * inputs) % 5 - 2).view(outputs, inputs)
    scales = torch.arange(outputs) % 3 + 1.0
    for dtype in FORMATS:
        exact = (x @ weight.T).float()
        for held, scale, expected in (
            (weight.to(dtype), None, exact),
            (weight.to(torch.int8), scales, exact * scales),
        ):
            layer = NativeLinear(native, held, None, scale, dtype)
            for count in (7, rows):
                if not torch.equal(layer(x[:count].to(dtype)), expected[:count].to(dtype)):
                    what = f"{dtype}" if scale is None else f"{dtype} with int8 weights"
                    raise NativeError(f"the native operators multiply {what} wrongly on this processor")
