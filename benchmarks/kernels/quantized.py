"""Rows of products with packed weights, of dequantizing weights, and of quantizing activations."""

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.kernels.case import Case, Inputs, close, compared
from benchmarks.kernels.weights import Groups, Sizes, packed_weights, weight_bytes
from kernels.gate import Activation
from kernels.quantized import dequantize, gate_rows, norm_rows, product, row_product, rows
from kernels.quantized.rows import QuantizedRows, RowFormat
from kernels.tuning import Config

NORM_EPS = 1e-6
CHECKED_ROWS = 64
"""Rows of a product of quantized rows that are compared: the reference multiplies in fp64."""


def weight_product(
    inputs: Inputs, rows: int, sizes: Sizes, groups: Groups, bias: bool = False, parts: int | None = None
) -> Case:
    weight, x = packed_weights(groups, sizes, inputs.device), inputs.normal(rows, sizes.inputs)
    added = inputs.normal(sizes.outputs) if bias else None
    whole = dequantize.dequantize(weight, inputs.dtype) if inputs.real else None
    return compared(
        partial(product.product, parts=parts),
        product.reference,
        *(x, weight, added),
        bytes=weight_bytes(weight) + rows * sum(sizes) * inputs.dtype.itemsize,
        operations=2 * rows * sizes.outputs * sizes.inputs,
        peers={} if whole is None else {"cuBLAS, dequantized": lambda: functional.linear(x, whole, added)},
    )


def dequantizing(inputs: Inputs, sizes: Sizes, groups: Groups) -> Case:
    weight = packed_weights(groups, sizes, inputs.device)
    return compared(
        dequantize.dequantize,
        dequantize.reference,
        *(weight, inputs.dtype),
        bytes=weight_bytes(weight) + sizes.outputs * sizes.inputs * inputs.dtype.itemsize,
    )


def quantized_row_product(inputs: Inputs, rows: int, sizes: Sizes, groups: Groups, bias: bool = False) -> Case:
    weight, x = packed_weights(groups, sizes, inputs.device), inputs.normal(rows, sizes.inputs)
    added = inputs.normal(sizes.outputs) if bias else None
    form = row_product.row_format(weight, inputs.device)
    assert form is not None, "not launched on such a device"
    quantized = quantize(inputs, x, form)
    y = x.new_empty((rows, sizes.outputs))

    def run(config: Config | None) -> Tensor:
        return row_product.row_product(quantized, weight, added, y, config=config)

    def check(config: Config | None) -> None:
        few = QuantizedRows(
            quantized.values[:CHECKED_ROWS], quantized.scales[:, :CHECKED_ROWS], quantized.form, sizes.inputs
        )
        close(run(config)[:CHECKED_ROWS], row_product.reference(few, weight, added, inputs.dtype))

    peers = {}
    if inputs.real:
        own, whole = dequantized(quantized).to(inputs.dtype), dequantize.dequantize(weight, inputs.dtype)
        peers["cuBLAS, dequantized"] = lambda: functional.linear(own, whole, added)
        peers["rows of 16 bits"] = lambda: product.product(own, weight, added)
    return Case(
        run,
        check,
        bytes=weight_bytes(weight) + rows * (sizes.inputs + sizes.outputs * inputs.dtype.itemsize),
        operations=2 * rows * sizes.outputs * sizes.inputs,
        peers=peers,
    )


def quantize(inputs: Inputs, x: Tensor, form: RowFormat) -> QuantizedRows:
    return rows.quantize_rows(x, form) if inputs.real else rows.empty_rows(len(x), x.shape[1], form, inputs.device)


def dequantized(quantized: QuantizedRows) -> Tensor:
    return rows.dequantized(quantized)


def has_row_product(sizes: Sizes, groups: Groups, **_: object) -> bool:
    meta = torch.device("meta")
    return row_product.row_format(packed_weights(groups, sizes, meta), meta) is not None


def alike(found: QuantizedRows, expected: QuantizedRows) -> None:
    """Raises AssertionError if a value differs by more than rounding, or if more than 1 in 1,000 values differ."""
    torch.testing.assert_close(found.scales, expected.scales, rtol=1e-5, atol=0)
    ours, theirs = dequantized(found), dequantized(expected)
    step = expected.scales.t().repeat_interleave(min(found.form.group, ours.shape[1]), 1)[:, : ours.shape[1]]
    error = (ours - theirs).abs()
    assert (error <= torch.maximum(step, theirs.abs() / 8) * 1.01).all(), "a value is another"
    assert (error > step * 1e-3).double().mean() < 1e-3, "values round otherwise"


def row_bytes(count: int, width: int, form: RowFormat) -> int:
    return count * (-(-width // 32) * 32 + 4 * form.groups(width))


def row_quantizing(inputs: Inputs, count: int, width: int, form: RowFormat) -> Case:
    x = inputs.normal(count, width)
    return compared(
        rows.quantize_rows,
        rows.reference,
        *(x, form),
        same=alike,
        bytes=x.numel() * inputs.dtype.itemsize + row_bytes(count, width, form),
    )


def normed_rows(inputs: Inputs, count: int, width: int, form: RowFormat) -> Case:
    hidden, change = inputs.normal(count, width), inputs.normal(count, width)
    weight = inputs.normal(width, dtype=torch.float32)

    def check(config: Config | None) -> None:
        ours, theirs = hidden.clone(), hidden.clone()
        found = norm_rows.norm_rows(ours, change, weight, NORM_EPS, form, config=config)
        alike(found, norm_rows.reference(theirs, change, weight, NORM_EPS, form))
        assert ours.equal(theirs), "another sum"

    return Case(
        lambda config: norm_rows.norm_rows(hidden, change, weight, NORM_EPS, form, config=config),
        check,
        bytes=3 * hidden.numel() * inputs.dtype.itemsize + row_bytes(count, width, form),
        peers={"two launches": lambda: norm_rows.reference(hidden, change, weight, NORM_EPS, form)},
    )


def gated_rows(inputs: Inputs, count: int, width: int, form: RowFormat, activation: Activation = "silu") -> Case:
    gate_up = inputs.normal(count, 2 * width)
    return compared(
        gate_rows.gate_rows,
        gate_rows.reference,
        *(gate_up, activation, form),
        same=alike,
        bytes=gate_up.numel() * inputs.dtype.itemsize + row_bytes(count, width, form),
        peers={"two launches": lambda: gate_rows.reference(gate_up, activation, form)},
    )
