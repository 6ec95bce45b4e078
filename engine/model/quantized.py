"""Holds a quantized weight in one of a few forms, whatever format of checkpoint it came from.

A form is what numbers are in memory: 4 bits, int8 or fp8 (e4m3). Each has scales for groups of neighbouring inputs, and
perhaps offsets. Readers of checkpoints (`engine/model/formats/`) and quantizing at load (`quantization.py`) make them;
a backend packs them once for its device, or multiplies by the numbers that they stand for.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

Form = Literal["int4", "int8", "fp8"]
MAX_VALUES_DEQUANTIZED = 1 << 20
"""Weights that become numbers at once."""
INT4_CODES = 16
"""Values of an int4 code."""


@dataclass(frozen=True, slots=True)
class Quantized:
    """Holds a weight `[out, in]`: w[o, i] = scales[o, i // group] v[o, i] + offsets[o, i // group].

    v is `values`, or what `table` has for them. The last group may be shorter. With an `order`, input i of the values
    and scales is input order[i] of x: a checkpoint may have sorted them.
    """

    form: Form
    values: Tensor  # [out, in]: uint8 codes 0 … 15 of int4, int8, or float8_e4m3fn
    scales: Tensor  # fp32 [out, groups]
    group: int  # inputs; those of the weight where an output has one scale
    offsets: Tensor | None = None  # fp32 [out, groups]; None: 0
    table: tuple[float, ...] = ()  # what each of the `INT4_CODES` codes of int4 stands for; empty: for itself
    order: Tensor | None = None  # int64 [in]; None: inputs are in their order
    meets_bytes: bool = False  # the checkpoint was made for inputs in int8, or fp8, as the values are

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
        """Returns the numbers of outputs and inputs."""
        outputs, inputs = self.values.shape
        return outputs, inputs

    def dequantized(self) -> Tensor:
        """Returns the fp32 weight `[out, in]` that this one stands for, its inputs in the order of x."""
        weight = torch.empty(self.values.shape, device=self.values.device)
        self.write(weight)
        return weight

    def write(self, target: Tensor) -> None:
        """Writes the numbers that this weight stands for to `target` `[out, in]`, in its float format.

        It goes some outputs after the other: what is computed on the way takes megabytes, however large the weight is.
        """
        rows = max(1, MAX_VALUES_DEQUANTIZED // self.shape[1])
        for begin in range(0, len(self), rows):
            target[begin : begin + rows] = self.rows(slice(begin, begin + rows))._numbers()

    def _numbers(self) -> Tensor:
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
        """Returns the weight multiplied by a number: its scales and offsets are."""
        offsets = None if self.offsets is None else self.offsets * factor
        return replace(self, scales=self.scales * factor, offsets=offsets)

    def rows(self, outputs: Tensor | slice) -> "Quantized":
        """Returns some of the outputs, by their numbers, int64, or as a slice."""
        offsets = None if self.offsets is None else self.offsets[outputs]
        return replace(self, values=self.values[outputs], scales=self.scales[outputs], offsets=offsets)


Weight = Tensor | Quantized
"""A weight of a linear layer, `[out, in]`: numbers in any float format, or quantized."""


def dequantized(weight: Weight) -> Tensor:
    """Returns the numbers of a weight: fp32 where it is quantized, in its own format elsewhere."""
    return weight.dequantized() if isinstance(weight, Quantized) else weight


def write(weight: Weight, target: Tensor) -> None:
    """Writes the numbers of a weight to `target` `[out, in]`, in its float format and on its device."""
    if isinstance(weight, Quantized):
        weight.write(target)
    else:
        target.copy_(weight)


def times(weight: Weight, factor: float) -> Weight:
    """Multiplies a weight by a number, in fp32."""
    return weight.times(factor) if isinstance(weight, Quantized) else weight.float() * factor


def rows(weight: Weight, outputs: Tensor | slice) -> Weight:
    """Returns some of a weight's outputs, by their numbers, int64, or as a slice."""
    return weight.rows(outputs) if isinstance(weight, Quantized) else weight[outputs]
