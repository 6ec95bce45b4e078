"""Whether the native operators multiply as they should on this processor."""

import ctypes

import torch

from core.errors import NativeError
from engine.backends.native.library import FORMATS
from engine.model.linear import NativeLinear


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
