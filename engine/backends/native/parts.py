"""Packs weights for the native operator: those that it can multiply as one become one part of a layer."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.backends.native.library import FORMATS, QUANTIZED_FORMATS, LinearArguments
from engine.model.linear import stacked
from engine.model.quantized import Quantized, Weight, dequantized

CPU = torch.device("cpu")
STEP = 16
"""Groups are multiples of it."""
MIDDLE = 8
"""The code of int4 that stands for zero where a checkpoint's numbers lie around it."""


@dataclass(frozen=True, slots=True)
class Part:
    """Holds packed weights, and the tensors that `arguments` point to."""

    arguments: LinearArguments
    tensors: list[Tensor]


def without_operator(weight: Weight) -> str | None:
    """Says what of a weight the operator does not know, if there is something."""
    if not isinstance(weight, Quantized):
        return None
    if weight.form not in QUANTIZED_FORMATS:
        return weight.form
    if weight.group % STEP and weight.group < weight.shape[1]:
        return f"{weight.form} in groups of {weight.group}"
    return None


def joined(weights: Sequence[Weight], dtype: torch.dtype) -> list[Weight]:
    """Joins neighbours that can be one part: numbers, in `dtype`, and quantized weights that differ in outputs only.

    Weights without an operator become the numbers that they stand for.
    """
    runs: list[list[Weight]] = []
    for weight in weights:
        known = weight if without_operator(weight) is None else dequantized(weight)
        if runs and _alike(runs[-1][0], known):
            runs[-1].append(known)
        else:
            runs.append([known])
    return [_together(run, dtype) for run in runs]


def _alike(a: Weight, b: Weight) -> bool:
    if not isinstance(a, Quantized) or not isinstance(b, Quantized):
        return isinstance(a, Tensor) and isinstance(b, Tensor)
    same = (a.form, a.group, a.table, _kind_of_offsets(a)) == (b.form, b.group, b.table, _kind_of_offsets(b))
    if a.order is None or b.order is None:
        return same and a.order is b.order
    return same and torch.equal(a.order, b.order)


def _kind_of_offsets(weight: Quantized) -> str:
    if weight.offsets is None:
        return "none"
    return "middle" if torch.equal(weight.offsets, weight.scales * -MIDDLE) else "own"


def _together(run: list[Weight], dtype: torch.dtype) -> Weight:
    first, given = run[0], [weight for weight in run if isinstance(weight, Quantized)]
    if isinstance(first, Tensor):
        ready = len(run) == 1 and first.dtype == dtype and first.is_contiguous()
        return first if ready else stacked(run, CPU, dtype)
    offsets = [weight.offsets for weight in given if weight.offsets is not None]
    return replace(
        first,
        values=torch.cat([weight.values for weight in given]),
        scales=torch.cat([weight.scales for weight in given]),
        offsets=torch.cat(offsets) if offsets else None,
    )


def packed(native: ctypes.CDLL, weight: Weight, bias: Tensor | None, dtype: torch.dtype) -> Part:
    """Packs what `joined` made, for an `x` in `dtype`; `bias` `[out]` is in it, too."""
    outputs, inputs = weight.shape
    arguments = LinearArguments(FORMATS[dtype], outputs=outputs, inputs=inputs)
    if isinstance(weight, Quantized):
        part = _pack_quantized(native, weight, arguments)
    else:
        arguments.weights = FORMATS[dtype]
        part = Part(arguments, [_pack(native, arguments, weight, None, None)])
    if bias is not None:
        assert bias.is_contiguous()
        arguments.bias = bias.data_ptr()
        part.tensors.append(bias)
    return part


def _pack_quantized(native: ctypes.CDLL, weight: Quantized, arguments: LinearArguments) -> Part:
    tensors = []
    arguments.weights = QUANTIZED_FORMATS[weight.form]
    scales, offsets = weight.scales.contiguous(), weight.offsets
    if weight.table:
        tensors.append(torch.tensor(weight.table))
        arguments.table = tensors[-1].data_ptr()
    if _kind_of_offsets(weight) == "middle":
        arguments.zero, offsets = MIDDLE, None
    if weight.order is not None:
        tensors.append(weight.order.contiguous())
        arguments.order = tensors[-1].data_ptr()
    by_output = weight.group >= weight.shape[1] and offsets is None
    if by_output:
        tensors.append(scales)
        arguments.scales = scales.data_ptr()
        tensors.append(_pack(native, arguments, weight.values, None, None))
        return Part(arguments, tensors)
    arguments.group = -(-min(weight.group, weight.shape[1]) // STEP) * STEP
    arguments.offsets = offsets is not None
    tensors.append(_pack(native, arguments, weight.values, scales, offsets))
    return Part(arguments, tensors)


def _pack(
    native: ctypes.CDLL, arguments: LinearArguments, values: Tensor, scales: Tensor | None, offsets: Tensor | None
) -> Tensor:
    values = values.contiguous()
    room = torch.empty(native.baton_packed_bytes(arguments), dtype=torch.uint8)
    groups = [None if each is None else each.contiguous() for each in (scales, offsets)]
    pointers = [None if each is None else each.data_ptr() for each in groups]
    native.baton_pack(arguments, values.data_ptr(), *pointers, room.data_ptr())
    arguments.packed = room.data_ptr()
    return room
