"""Packs weights for the native operator; weights that it can multiply together become one part of a layer."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.backends.native.library import DTYPE_CODES, QUANTIZED_CODES, LinearArguments
from engine.backends.native.linear_layers.huge_pages import HugePages
from engine.model.quantized import Quantized, Weight, dequantized, stacked
from engine.parallel.sums import SumOrder

CPU_DEVICE = torch.device("cpu")
GROUP_MULTIPLE = 16
"""Group sizes must be multiples of this."""
PANEL_UNIT_INPUTS = 32
"""See quantized_panel.h."""
TABLE_UNITS = tuple(2.0**-power for power in range(8))
"""Units in which the values of a supported table are whole numbers."""
MAX_TABLE_SPAN = 32
"""Maximum spread of a table's whole numbers: 16 bits then hold eight products of them with int8."""
INT4_ZERO_CODE = 8
"""The int4 code of zero in symmetrically quantized checkpoints."""

_HUGE_PAGES = HugePages()


@dataclass(frozen=True, slots=True)
class PackedPart:
    """Packed weights, and the tensors that `arguments` point to."""

    arguments: LinearArguments
    tensors: list[Tensor]


def without_operator(weight: Weight) -> str | None:
    """Returns the property of a weight that the operator does not support; None if it supports the weight."""
    if not isinstance(weight, Quantized):
        return None
    if weight.form not in QUANTIZED_CODES:
        return weight.form
    if weight.group % GROUP_MULTIPLE and weight.group < weight.shape[1]:
        return f"{weight.form} in groups of {weight.group}"
    if weight.table and integer_table(weight.table) is None:
        return f"{weight.form} with a table that is not of whole numbers"
    return None


def joined(weights: Sequence[Weight], dtype: torch.dtype) -> list[Weight]:
    """Joins neighbours that can form one part: unquantized weights in `dtype`, or quantized weights of the same kind.

    Weights without an operator are dequantized.
    """
    runs: list[list[Weight]] = []
    for weight in weights:
        supported = weight if without_operator(weight) is None else dequantized(weight)
        if runs and _can_join(runs[-1][0], supported):
            runs[-1].append(supported)
        else:
            runs.append([supported])
    return [_join(run, dtype) for run in runs]


def _can_join(a: Weight, b: Weight) -> bool:
    if not isinstance(a, Quantized) or not isinstance(b, Quantized):
        return isinstance(a, Tensor) and isinstance(b, Tensor)
    same = (a.form, a.group, a.table, _kind_of_offsets(a)) == (b.form, b.group, b.table, _kind_of_offsets(b))
    if a.order is None or b.order is None:
        return same and a.order is b.order
    return same and torch.equal(a.order, b.order)


def _kind_of_offsets(weight: Quantized) -> str:
    if weight.offsets is None:
        return "none"
    return "middle" if torch.equal(weight.offsets, weight.scales * -INT4_ZERO_CODE) else "own"


def _join(run: list[Weight], dtype: torch.dtype) -> Weight:
    first, quantized = run[0], [weight for weight in run if isinstance(weight, Quantized)]
    if isinstance(first, Tensor):
        ready = len(run) == 1 and first.dtype == dtype and first.is_contiguous()
        return first if ready else stacked(run, CPU_DEVICE, dtype)
    offsets = [weight.offsets for weight in quantized if weight.offsets is not None]
    return replace(
        first,
        values=torch.cat([weight.values for weight in quantized]),
        scales=torch.cat([weight.scales for weight in quantized]),
        offsets=torch.cat(offsets) if offsets else None,
    )


def packed(native: ctypes.CDLL, weight: Weight, bias: Tensor | None, dtype: torch.dtype, order: SumOrder) -> PackedPart:
    """Packs a weight from `joined` for an `x` in `dtype`; `bias` `[out]` has that dtype too."""
    outputs, inputs = weight.shape
    arguments = LinearArguments(
        DTYPE_CODES[dtype], outputs=outputs, inputs=inputs, splits=order.splits, partial=order.partial
    )
    if isinstance(weight, Quantized):
        part = _pack_quantized(native, weight, arguments, dtype)
    else:
        arguments.weights = DTYPE_CODES[dtype]
        part = PackedPart(arguments, [_pack(native, arguments, weight, None, None)])
    if bias is not None:
        assert bias.is_contiguous()
        arguments.bias = bias.data_ptr()
        part.tensors.append(bias)
    return part


def _pack_quantized(
    native: ctypes.CDLL, weight: Quantized, arguments: LinearArguments, dtype: torch.dtype
) -> PackedPart:
    tensors = []
    inputs = weight.shape[1]
    scales, offsets = weight.scales, weight.offsets
    arguments.weights = QUANTIZED_CODES[weight.form]
    if _kind_of_offsets(weight) == "middle":
        arguments.zero, offsets = INT4_ZERO_CODE, None
    if weight.table:
        table = torch.tensor(weight.table)
        if dtype == torch.bfloat16:
            table_of_integers = integer_table(weight.table)
            assert table_of_integers is not None
            unit, table, arguments.zero = table_of_integers
            scales = scales * unit
        tensors.append(table)
        arguments.table = table.data_ptr()
    if weight.order is not None:
        tensors.append(weight.order.contiguous())
        arguments.order = tensors[-1].data_ptr()
    if weight.group >= inputs and offsets is None:
        tensors += [scales.contiguous(), _pack(native, arguments, weight.values, None, None)]
        arguments.scales = tensors[-2].data_ptr()
        return PackedPart(arguments, tensors)
    arguments.group = weight.group if weight.group < inputs else -(-inputs // PANEL_UNIT_INPUTS) * PANEL_UNIT_INPUTS
    arguments.offsets = offsets is not None
    if dtype == torch.bfloat16 and weight.form != "fp8":
        largest = powers_above(scales, offsets)
        scales, offsets = scales / largest, None if offsets is None else offsets / largest
        tensors.append(largest)
        arguments.scales = largest.data_ptr()
    tensors.append(_pack(native, arguments, weight.values, scales, offsets))
    return PackedPart(arguments, tensors)


def powers_above(scales: Tensor, offsets: Tensor | None) -> Tensor:
    """Returns the power of two above each output's largest finite scale or offset, `[out, 1]`.

    The quotients fit in fp16, exactly if they have at most fp16's digits and are not tiny relative to others.
    """
    numbers = scales if offsets is None else torch.cat((scales, offsets), 1)
    largest = numbers.abs().nan_to_num(0, 0, 0).amax(1, keepdim=True).clamp(min=2.0**-100)
    return torch.exp2(largest.log2().ceil().clamp(max=127))


def integer_table(table: Sequence[float]) -> tuple[float, Tensor, int] | None:
    """Returns (unit, whole numbers `[16]`, zero) with table = unit x (number - zero), or None."""
    for unit in TABLE_UNITS:
        numbers = [value / unit for value in table]
        if all(number.is_integer() for number in numbers) and max(numbers) - min(numbers) <= MAX_TABLE_SPAN:
            return unit, torch.tensor(numbers) - min(numbers), -int(min(numbers))
    return None


def _pack(
    native: ctypes.CDLL, arguments: LinearArguments, values: Tensor, scales: Tensor | None, offsets: Tensor | None
) -> Tensor:
    values = values.contiguous()
    memory = _HUGE_PAGES.empty(native.baton_packed_bytes(arguments))
    groups = [None if each is None else each.contiguous() for each in (scales, offsets)]
    pointers = [None if each is None else each.data_ptr() for each in groups]
    native.baton_pack(arguments, values.data_ptr(), *pointers, memory.data_ptr())
    arguments.packed = memory.data_ptr()
    return memory
