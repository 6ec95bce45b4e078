"""Native linear layer: memory-bound for few rows, compute-bound for many."""

import ctypes
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from contracts.errors import NativeError
from engine.backends.native.library import DTYPE_CODES, LinearArguments
from engine.backends.native.linear_layers.parts import joined, packed
from engine.model.quantized import Form, Quantized, Weight, dequantized
from engine.parallel.sums import WHOLE_SUM, SumOrder


class NativeLinear:
    """Multiplies by weights in the native operator's panels.

    A row's result depends on that row only; in fp32, to the bit.
    """

    def __init__(
        self,
        native: ctypes.CDLL,
        weights: Weight | Sequence[Weight],
        bias: Tensor | None,
        dtype: torch.dtype | None = None,
        order: SumOrder = WHOLE_SUM,
    ) -> None:
        """Packs one weight `[out, in]`, or several whose outputs lie side by side, for an `x` in `dtype`.

        The default `dtype` is that of the weight, which is then a tensor; `bias` `[out of all]` has it too.
        """
        given = [weights] if isinstance(weights, Tensor | Quantized) else list(weights)
        if dtype is None:
            assert isinstance(given[0], Tensor)
            dtype = given[0].dtype
        together = joined(given, dtype)
        self._dtype = dtype
        self._outputs, self._inputs = sum(map(len, together)), together[0].shape[1]
        biases = [None] * len(together) if bias is None else bias.split([len(weight) for weight in together])
        self._out_dtype = torch.float32 if order.partial else dtype
        self._parts = [packed(native, *part, dtype, order) for part in zip(together, biases, strict=True)]
        if len(self._parts) == 1:
            self.arguments = self._parts[0].arguments
        else:
            self.arguments = LinearArguments(DTYPE_CODES[dtype], outputs=self._outputs, inputs=self._inputs)
            self._described = (LinearArguments * len(self._parts))(*(part.arguments for part in self._parts))
            self.arguments.part_count, self.arguments.parts = len(self._parts), ctypes.addressof(self._described)
        self._multiply = native.baton_linear

    def __call__(self, x: Tensor) -> Tensor:
        rows, inputs = x.shape
        assert inputs == self._inputs and x.dtype == self._dtype and x.stride(1) == 1
        y = x.new_empty((rows, self._outputs), dtype=self._out_dtype)
        self._multiply(self.arguments, x.data_ptr(), x.stride(0), rows, y.data_ptr())
        return y

    def held(self) -> list[Tensor]:
        return [tensor for part in self._parts for tensor in part.tensors]


def prove(native: ctypes.CDLL) -> None:
    """Checks the compiled operators on this processor with whole numbers, whose sums are exact.

    Raises `NativeError` if a product is wrong; PyTorch's operators serve then.
    """
    rows, outputs, inputs = 39, 70, 227  # odd sizes, to test partial tiles
    x = (torch.arange(rows * inputs) % 7 - 3).view(rows, inputs).float()
    x[:, ::16] = 127  # the largest value of its int8 group, so that the others stay whole numbers
    for dtype in DTYPE_CODES:
        plain = (torch.arange(outputs * inputs) % 5 - 2).view(outputs, inputs).to(dtype)
        weights: list[Weight] = [plain, *_whole_weights(outputs, inputs)]
        for weight in weights:
            what = f"{dtype}" + (f" with {weight.form} weights" if isinstance(weight, Quantized) else "")
            exact = (x.double() @ dequantized(weight).double().T).float()
            layer = NativeLinear(native, weight, None, dtype)
            for count in (7, rows):
                if not torch.equal(layer(x[:count].to(dtype)), exact[:count].to(dtype)):
                    raise NativeError(f"the native operators multiply {what} wrongly on this processor")


def _whole_weights(outputs: int, inputs: int) -> Iterator[Quantized]:
    """Yields weights of whole numbers for each quantization format, with scales by output and by group."""
    forms: tuple[tuple[Form, torch.dtype, int], ...] = (
        ("int8", torch.int8, 2),
        ("int4", torch.uint8, 0),
        ("fp8", torch.float8_e4m3fn, 2),
    )
    for form, kind, zero in forms:
        values = (torch.arange(outputs * inputs) % 5 - zero).view(outputs, inputs).to(kind)
        for group in (inputs, 48, 32):
            scales = (torch.arange(outputs * -(-inputs // group)) % 3 + 1.0).view(outputs, -1)
            offsets = None if form == "fp8" or group == inputs else scales * 3 - 8
            yield Quantized(form, values, scales, group, offsets)
