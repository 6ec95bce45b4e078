"""Quantizes float weights when they are loaded, rounding to nearest.

- int8: one scale for each output o, w[o, i] ~ scale[o] q[o, i] with scale[o] = max |w[o]| / 127. The error of a weight
  is at most scale[o] / 2.
- fp8 (e4m3): one scale for each output, max |w[o]| / 448 times the factor in `FP8_SCALE_CANDIDATES` with the least
  squared error.
- int4: one scale for each group of 32 inputs, and codes q in -8 … 7. Each candidate of `INT4_SCALE_CANDIDATES` gives
  codes; the best scale for these is <w, q> / <q, q>; the candidate with the least squared error wins. Scales are
  rounded to bf16, so that 16 bits can hold them.

If any weight of a group (or output) is not finite, its scale is not finite either, so that results show it.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from contracts.kinds import Quantization
from engine.model.quantized import Quantized, Weight

LARGEST_INT8, LARGEST_FP8 = 127, 448.0
FP8_SCALE_CANDIDATES = tuple(2.0 ** (step / 8) for step in range(8))
"""Candidate scales of fp8, in units of the smallest: fp8's spacing doubles at powers of two, so the error depends on
the weights near them. On the demo model's weights the error is 0.92 times that of the smallest scale."""
INT4_GROUP_INPUTS = 32
INT4_MIN, INT4_MAX = -8, 7
INT4_SCALE_CANDIDATES = (1.03, 0.96, 0.9, -1.12, -1.04, -0.97)
"""Candidate scales of int4: with 1 a group's largest weight gets the code -8, with -8 / 7 the code 7. On the demo
model's weights the error is 0.968 times that with 1 alone; forty candidates of each sign would make it 0.964."""
MAX_VALUES_QUANTIZED = 1 << 18
"""Weights that are quantized at a time, so that intermediate results take only megabytes."""
SMALLEST_FP32 = torch.finfo(torch.float32).tiny


def quantized(weight: Weight, quantization: Quantization) -> Weight:
    """Quantizes a weight `[out, in]`; a quantized weight stays unchanged."""
    if quantization == "none" or isinstance(weight, Quantized):
        return weight
    return {"int8": to_int8, "int4": to_int4, "fp8": to_fp8}[quantization](weight)


def of_head(quantization: Quantization) -> Quantization:
    """Returns the head's quantization: 8 bits if other layers have 4, as every token passes it.

    With 4 bits there, the demo model's divergence would be a sixth larger.
    """
    return "int8" if quantization == "int4" else quantization


def bytes_of_value(dtype: torch.dtype, quantization: Quantization) -> float:
    """Returns the bytes of one weight, with its share of a group's scale; scales of outputs are negligible."""
    return {"none": float(dtype.itemsize), "int8": 1.0, "fp8": 1.0, "int4": 0.5 + 2 / INT4_GROUP_INPUTS}[quantization]


def to_int8(weight: Tensor) -> Quantized:
    """Quantizes a weight `[out, in]` to int8, with a scale for each output."""
    values, scales = torch.empty(weight.shape, dtype=torch.int8, device=weight.device), []
    for outputs, exact in _pieces(weight):
        scale = exact.abs().amax(1, keepdim=True) / LARGEST_INT8
        values[outputs] = (exact / _divisor(scale)).round_().nan_to_num_().to(torch.int8)
        scales.append(scale)
    return Quantized("int8", values, torch.cat(scales), group=weight.shape[1])


def to_fp8(weight: Tensor) -> Quantized:
    """Quantizes a weight `[out, in]` to fp8, with a scale for each output."""
    values, scales = torch.empty(weight.shape, dtype=torch.float8_e4m3fn, device=weight.device), []
    for outputs, exact in _pieces(weight):
        smallest = exact.abs().amax(1, keepdim=True) / LARGEST_FP8
        units = exact / _divisor(smallest)  # so that squares neither overflow nor vanish
        least, phase = torch.full_like(smallest, torch.inf), torch.ones_like(smallest)
        for tried in FP8_SCALE_CANDIDATES:
            error = _cut_error(units / tried) * tried**2
            nearer = error < least
            least, phase = torch.where(nearer, error, least), torch.where(nearer, tried, phase)
        values[outputs] = _in_fp8(units / phase)
        scales.append(smallest * phase)
    return Quantized("fp8", values, torch.cat(scales), group=weight.shape[1])


def to_int4(weight: Tensor) -> Quantized:
    """Quantizes a weight `[out, in]` to 4 bits, with a scale for each group of 32 inputs; the last may be shorter."""
    inputs = weight.shape[1]
    groups = -(-inputs // INT4_GROUP_INPUTS)
    codes, scales = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device), []
    for outputs, exact in _pieces(weight):
        whole = functional.pad(
            exact, (0, groups * INT4_GROUP_INPUTS - inputs)
        )  # by zeros, which add nothing to any sum
        columns = whole.reshape(
            -1, INT4_GROUP_INPUTS
        ).T.contiguous()  # [32, rows x groups]: a group's sum is one of rows
        scale = fitting_scales(columns)
        found = _in_int4(columns / _divisor(scale)).nan_to_num_() - INT4_MIN
        codes[outputs] = found.T.reshape(len(exact), -1)[:, :inputs].to(torch.uint8)
        scales.append(scale.view(len(exact), groups))
    scale = torch.cat(scales)
    return Quantized("int4", codes, scale, INT4_GROUP_INPUTS, offsets=scale * INT4_MIN)


def plain_scales(columns: Tensor) -> Tensor:
    """Returns the scales `[groups]` with which each column's largest weight, of `[32, groups]`, gets the code -8."""
    largest = columns.gather(0, columns.abs().argmax(0, keepdim=True))[0]
    return (largest / INT4_MIN).bfloat16().float()


def fitting_scales(columns: Tensor) -> Tensor:
    """Returns the scales `[groups]` with the least squared error among the candidates, and never worse than the plain.

    `columns` are fp32 `[32, groups]`; the scales are fp32 with bf16's digits.
    """
    plain = plain_scales(columns)
    units = columns / _divisor(plain)
    most, ratio = torch.zeros_like(plain), torch.ones_like(plain)
    for clipping in INT4_SCALE_CANDIDATES:
        codes = _in_int4(units / clipping)
        product, length = (units * codes).sum(0), codes.square_().sum(0).clamp_(min=1)
        explained = product * product / length  # of the sum of squares; the rest is the squared error
        better = explained > most
        most, ratio = torch.where(better, explained, most), torch.where(better, product / length, ratio)
    scales = (ratio * plain).bfloat16().float()
    nearer = _error(units, scales / _divisor(plain)) < _error(units, torch.ones_like(plain))
    return torch.where(nearer, scales, plain)  # after rounding to bf16, the best may be worse


def _error(units: Tensor, scales: Tensor) -> Tensor:
    """Returns the squared error `[groups]` of columns `[32, groups]` rounded with these scales."""
    return _in_int4(units / _divisor(scales)).mul_(scales).sub_(units).square_().sum(0)


def _in_int4(numbers: Tensor) -> Tensor:
    return numbers.round_().clamp_(INT4_MIN, INT4_MAX)


def _cut_error(numbers: Tensor) -> Tensor:
    """Returns the squared error `[outputs, 1]` of values `[outputs, inputs]` rounded to fp8's 4 binary digits.

    Veltkamp's splitting, several times faster than converting to fp8 and back. It differs only where e4m3 has fewer
    digits: below 2 ** -6, on a scale whose maximum is 448.
    """
    high = numbers * (2.0**20 + 1)
    cut = high - (high - numbers)
    return cut.sub_(numbers).square_().sum(1, keepdim=True)


def _in_fp8(numbers: Tensor) -> Tensor:
    return numbers.nan_to_num_().clamp_(-LARGEST_FP8, LARGEST_FP8).to(torch.float8_e4m3fn)


def _divisor(scales: Tensor) -> Tensor:
    return torch.where(scales.abs() < SMALLEST_FP32, 1.0, scales)


def _pieces(weight: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yields ranges of outputs with their weights in fp32."""
    rows = max(1, MAX_VALUES_QUANTIZED // weight.shape[1])
    for begin in range(0, len(weight), rows):
        yield slice(begin, begin + rows), weight[begin : begin + rows].float()
