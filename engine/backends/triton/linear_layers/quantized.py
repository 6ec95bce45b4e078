"""Multiplies by quantized weights on a GPU: they stay packed and are dequantized in registers.

Large batches with quantized rows multiply bytes by bytes. Fewer rows stay unquantized: by an H100's data sheet, a
product of up to about 150 rows takes as long as reading the weights, whatever the rows' format.

Importing this module loads Triton.
"""

import logging
from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import functional

from contracts.kinds import Activations
from engine.model.quantized import Quantized, Weight, stacked
from kernels.quantized.dequantize import dequantize
from kernels.quantized.packed import PackedWeight, WeightCodes, pack, unsupported
from kernels.quantized.product import MAX_SPLIT_K_ROWS, ROW_TILES, product
from kernels.quantized.row_product import row_format, row_product
from kernels.quantized.rows import QuantizedRows, RowFormat, quantize_rows

LOG = logging.getLogger(__name__)
MIN_DEQUANTIZED_ROWS = 1024
"""Rows from which a weight is dequantized first and multiplied by cuBLAS. By an H100's data sheet, writing and
reading it then takes a quarter of the product's time, and less for more rows."""
_logged: set[str] = set()


class QuantizedLinear:
    """Multiplies by packed weights of one kind."""

    def __init__(
        self, weight: PackedWeight, order: Tensor | None, bias: Tensor | None, form: RowFormat | None = None
    ) -> None:
        """With a `form`, large batches are quantized to it."""
        self._weight, self._order, self._bias, self._form = weight, order, bias, form
        self.outputs = weight.outputs

    def __call__(self, x: Tensor, output: Tensor | None = None) -> Tensor:
        """Returns `[rows, out]`, or writes it to `output`, whose rows may be slices of wider rows."""
        x = x.contiguous() if self._order is None else x.index_select(1, self._order)
        form = self.form_of(len(x))
        if form is not None:
            y = x.new_empty((len(x), self.outputs)) if output is None else output
            return self.multiply(quantize_rows(x, form), y)
        if len(x) < MIN_DEQUANTIZED_ROWS:
            return product(x, self._weight, self._bias, output)
        y = functional.linear(x, dequantize(self._weight, x.dtype), self._bias)
        return y if output is None else output.copy_(y)

    def form_of(self, rows: int) -> RowFormat | None:
        """Returns the activation format for a batch of `rows`, or None for unquantized."""
        return self._form if rows > MAX_SPLIT_K_ROWS else None

    def multiply(self, rows: QuantizedRows, output: Tensor) -> Tensor:
        """Multiplies quantized rows into `output` `[rows, out]`, and returns it."""
        return row_product(rows, self._weight, self._bias, output)

    @property
    def inputs(self) -> int:
        return self._weight.inputs

    @property
    def variant(self) -> tuple[object, ...]:
        """Returns the key of compiled kernels: one layer of each variant is warmed up."""
        weight = self._weight
        formats = [tensor.dtype for tensor in weight.tensors()]
        sizes = weight.group, weight.inputs, weight.outputs
        return weight.kind, *sizes, *formats, self._bias is None, self._form

    def held(self) -> list[Tensor]:
        """Returns codes, scales, offsets, the order of inputs and the bias."""
        return [*self._weight.tensors(), *(given for given in (self._order, self._bias) if given is not None)]


class DequantizedLinear:
    """Unquantized part of a layer whose other parts are packed, multiplied by cuBLAS."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight, bias
        self.outputs, self.inputs = weight.shape

    @property
    def variant(self) -> tuple[object, ...]:
        """Returns the part of the key that decides where the other parts' outputs lie."""
        return (self.outputs,)

    def __call__(self, x: Tensor, output: Tensor) -> Tensor:
        """Writes `[rows, out]` to `output`, whose rows may be slices of wider rows."""
        return output.copy_(functional.linear(x, self._weight, self._bias))

    def held(self) -> list[Tensor]:
        return [self._weight] if self._bias is None else [self._weight, self._bias]


class SideBySide:
    """Multiplies by weights of several kinds, one after the other, with concatenated outputs."""

    def __init__(self, parts: Sequence[QuantizedLinear | DequantizedLinear]) -> None:
        self._parts = parts
        self._outputs = sum(part.outputs for part in parts)
        self.inputs = parts[0].inputs

    @property
    def variant(self) -> tuple[object, ...]:
        return tuple(part.variant for part in self._parts)

    def __call__(self, x: Tensor) -> Tensor:
        y, begin = x.new_empty((len(x), self._outputs)), 0
        for part in self._parts:
            part(x, y[:, begin : begin + part.outputs])
            begin += part.outputs
        return y

    def held(self) -> list[Tensor]:
        return [tensor for part in self._parts for tensor in part.held()]


def warm_up(linear: QuantizedLinear | SideBySide, device: torch.device, dtype: torch.dtype) -> None:
    """Launches each variant of a layer's kernels once, for x in `dtype`."""
    for rows in (*ROW_TILES, ROW_TILES[-1] + 1, MIN_DEQUANTIZED_ROWS):
        linear(torch.zeros((rows, linear.inputs), dtype=dtype, device=device))


def make_linear(
    weights: Sequence[Weight],
    bias: Tensor | None,
    device: torch.device,
    dtype: torch.dtype,
    activations: Activations,
) -> QuantizedLinear | SideBySide:
    """Makes one layer of weights `[out, in]`, at least one of which the kernels support.

    Neighbours with the same kind, group and order of inputs are packed together. Unquantized and unsupported weights
    are floats in `dtype`. `activations` decides whether large batches are quantized: with `auto` if the checkpoint was
    made for it, and never in fp32, which gives the same results as dequantized weights.
    """
    parts: list[QuantizedLinear | DequantizedLinear] = []
    begin = 0
    for _, stretch in groupby(weights, _fusing):
        together = list(stretch)
        end = begin + sum(map(len, together))
        own = None if bias is None else bias[begin:end].contiguous()
        begin = end
        codes = [coded(weight) for weight in together if packs(weight)]
        if codes:
            first = together[0]
            assert isinstance(first, Quantized)
            packed, order = pack(codes, device), None if first.order is None else first.order.to(device)
            form = form_of(packed, order) if meets_bytes(together, dtype, activations) else None
            parts.append(QuantizedLinear(packed, order, own, form))
        else:
            parts.append(DequantizedLinear(stacked(together, device, dtype), own))
    only = parts[0]
    return only if len(parts) == 1 and isinstance(only, QuantizedLinear) else SideBySide(parts)


def meets_bytes(weights: Sequence[Weight], dtype: torch.dtype, activations: Activations) -> bool:
    """Returns whether large batches in `dtype` should be quantized for these weights."""
    made_for_it = all(isinstance(weight, Quantized) and weight.meets_bytes for weight in weights)
    return activations == "8bit" or (activations == "auto" and made_for_it and dtype != torch.float32)


def form_of(packed: PackedWeight, order: Tensor | None = None) -> RowFormat | None:
    """Returns the format of large batches that should be quantized; None if they stay as they are. Logs which.

    They stay as they are where inputs have another `order`.
    """
    form = row_format(packed, packed.codes.device) if order is None else None
    met = "as they are" if form is None else f"as {form.kind}, with scales of their own"
    _tell(f"more than {MAX_SPLIT_K_ROWS} tokens at once meet {packed.kind} weights {met}")
    return form


def coded(weight: Weight) -> WeightCodes:
    assert isinstance(weight, Quantized)
    return WeightCodes(weight.values, weight.scales, min(weight.group, weight.shape[1]), weight.offsets, weight.table)


def packs(weight: Weight) -> bool:
    """Returns whether the kernels support a weight; logs once why a quantized one is not supported."""
    if not isinstance(weight, Quantized):
        return False
    why = unsupported(coded(weight))
    if why:
        _tell(f"weights are dequantized in memory: {why}")
    return not why


def _tell(what: str) -> None:
    if what not in _logged:
        _logged.add(what)
        LOG.info(what)


def _fusing(weight: Weight) -> tuple[object, ...]:
    if not isinstance(weight, Quantized) or not packs(weight):
        return ()
    order = b"" if weight.order is None else weight.order.cpu().numpy().tobytes()
    return coded(weight).kind, coded(weight).group, order, weight.meets_bytes
