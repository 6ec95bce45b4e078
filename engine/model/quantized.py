"""A quantized weight in memory, independent of the checkpoint format that it came from.

Its form is int4, int8 or fp8 (e4m3), with scales for groups of neighbouring inputs and optional offsets. Readers of
checkpoints (`engine/model/formats/`) and quantization at load (`quantization.py`) make such weights; a backend packs
them once for its device, or dequantizes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from contracts.errors import ModelError

Form = Literal["int4", "int8", "fp8"]
MAX_VALUES_DEQUANTIZED = 1 << 20
"""Weights that are dequantized at a time."""
INT4_CODES = 16


@dataclass(frozen=True, slots=True)
class Quantized:
    """A weight `[out, in]`: w[o, i] = scales[o, i // group] v[o, i] + offsets[o, i // group].

    v is `values`, looked up in `table` if that is given. The last group may be shorter. With an `order`, input i of
    values and scales is input order[i] of x.
    """

    form: Form
    values: Tensor  # [out, in]: uint8 codes 0 … 15 of int4, int8, or float8_e4m3fn
    scales: Tensor  # fp32 [out, groups]
    group: int  # inputs that share a scale; all inputs for one scale by output
    offsets: Tensor | None = None  # fp32 [out, groups]; None: 0
    table: tuple[float, ...] = ()  # value of each int4 code; empty: the code itself
    order: Tensor | None = None  # int64 [in]; None: inputs are in their order
    meets_bytes: bool = False  # the checkpoint expects inputs quantized to the same 8-bit type

    def __post_init__(self) -> None:
        outputs, inputs = self.values.shape
        groups = -(-inputs // self.group)
        assert self.scales.shape == (outputs, groups) and self.scales.dtype == torch.float32
        assert self.offsets is None or (self.offsets.shape == self.scales.shape and self.offsets.dtype == torch.float32)
        assert not self.table or (self.form == "int4" and len(self.table) == INT4_CODES)
        assert self.order is None or self.order.shape == (inputs,)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def shape(self) -> tuple[int, int]:
        outputs, inputs = self.values.shape
        return outputs, inputs

    def dequantized(self) -> Tensor:
        """Returns the fp32 weight `[out, in]`, its inputs in the order of x."""
        weight = torch.empty(self.values.shape, device=self.values.device)
        self.write(weight)
        return weight

    def write(self, target: Tensor) -> None:
        """Writes the dequantized weight to `target` `[out, in]`, in its float format.

        Works on a few outputs at a time, so that intermediate results take only megabytes.
        """
        rows = max(1, MAX_VALUES_DEQUANTIZED // self.shape[1])
        for begin in range(0, len(self), rows):
            target[begin : begin + rows] = self.rows(slice(begin, begin + rows))._dequantized()

    def _dequantized(self) -> Tensor:
        values = self.values.float()
        if self.table:
            values = torch.tensor(self.table, device=values.device)[self.values.int()]
        inputs = values.shape[1]

        def spread(groups: Tensor) -> Tensor:
            return groups.repeat_interleave(self.group, 1)[:, :inputs]

        weight = values * spread(self.scales)
        if self.offsets is not None:
            weight += spread(self.offsets)
        if self.order is None:
            return weight
        there = torch.empty_like(weight)
        there[:, self.order] = weight
        return there

    def times(self, factor: float) -> "Quantized":
        """Returns the weight times a factor, by its scales and offsets."""
        offsets = None if self.offsets is None else self.offsets * factor
        return replace(self, scales=self.scales * factor, offsets=offsets)

    def rows(self, outputs: Tensor | slice) -> "Quantized":
        """Returns a selection of the outputs, by int64 indices or a slice."""
        offsets = None if self.offsets is None else self.offsets[outputs]
        return replace(self, values=self.values[outputs], scales=self.scales[outputs], offsets=offsets)

    def columns(self, inputs: slice) -> "Quantized":
        """Returns a range of the inputs, which must cut no group. Raises `ValueError` if it does, or with an order."""
        begin, end = inputs.start, inputs.stop
        if self.order is not None:
            raise ValueError("its inputs are in another order")
        if self.group >= self.shape[1]:  # one scale for all inputs
            return replace(self, values=self.values[:, inputs])
        if begin % self.group or (end % self.group and end < self.shape[1]):
            raise ValueError(f"a range of {end - begin} inputs cuts groups of {self.group}")
        groups = slice(begin // self.group, -(-end // self.group))
        offsets = None if self.offsets is None else self.offsets[:, groups]
        return replace(self, values=self.values[:, inputs], scales=self.scales[:, groups], offsets=offsets)


Weight = Tensor | Quantized
"""A weight of a linear layer, `[out, in]`: floats of any format, or quantized."""


def dequantized(weight: Weight) -> Tensor:
    """Returns a weight as floats: fp32 if it was quantized, else its own format."""
    return weight.dequantized() if isinstance(weight, Quantized) else weight


def write(weight: Weight, target: Tensor) -> None:
    """Writes a weight to `target` `[out, in]`, in its float format and on its device."""
    if isinstance(weight, Quantized):
        weight.write(target)
    else:
        target.copy_(weight)


def times(weight: Weight, factor: float) -> Weight:
    return weight.times(factor) if isinstance(weight, Quantized) else weight.float() * factor


def rows(weight: Weight, outputs: Tensor | slice) -> Weight:
    return weight.rows(outputs) if isinstance(weight, Quantized) else weight[outputs]


def columns(weight: Weight, inputs: slice, name: str) -> Weight:
    """Returns a range of the inputs of the layer `name`. Raises `ModelError` if it cuts a group of quantized inputs."""
    if isinstance(weight, Tensor):
        return weight[:, inputs]
    try:
        return weight.columns(inputs)
    except ValueError as error:
        raise ModelError(f"{name} cannot be divided among ranks: {error}; take fewer ranks") from None


def stacked(tensors: Sequence[Weight], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Concatenates tensors along rows, dequantized and converted, without a second copy."""
    whole = torch.empty((sum(map(len, tensors)), *tensors[0].shape[1:]), dtype=dtype, device=device)
    begin = 0
    for tensor in tensors:
        write(tensor, whole[begin : begin + len(tensor)])
        begin += len(tensor)
    return whole
