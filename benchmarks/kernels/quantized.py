"""Rows of products with packed weights, of dequantizing weights, and of quantizing activations."""

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.kernels.case import Case, Inputs, Kernel, close, grid, returning
from benchmarks.kernels.weights import (
    AWQ,
    DOWN,
    FP8,
    FP8_BLOCKS,
    GATE_UP,
    INT4,
    INT8,
    MXFP4,
    OUTPUT,
    Q4_K,
    Q6_K,
    QKV,
    Groups,
    Sizes,
    packed_weights,
    weight_bytes,
)
from kernels.gate import Activation
from kernels.quantized import dequantize, gate_rows, norm_rows, product, row_product, rows
from kernels.quantized.rows import QuantizedRows, RowFormat
from kernels.tuning import Config

NORM_EPS = 1e-6
CHECKED_ROWS = 64
"""Rows of a product of quantized rows that are compared: the reference multiplies in fp64."""
WHOLE_ROW = 1 << 30
ROWS_INT8, ROWS_FP8, ROWS_BLOCKS = RowFormat("int8", WHOLE_ROW), RowFormat("fp8", WHOLE_ROW), RowFormat("fp8", 128)
ROW_FORMATS = [ROWS_INT8, ROWS_FP8, ROWS_BLOCKS]


def weight_product(
    inputs: Inputs, rows: int, sizes: Sizes, groups: Groups, bias: bool = False, parts: int | None = None
) -> Case:
    weight, x = packed_weights(groups, sizes, inputs.device), inputs.normal(rows, sizes.inputs)
    added = inputs.normal(sizes.outputs) if bias else None
    whole = dequantize.dequantize(weight, inputs.dtype) if inputs.real else None
    return returning(
        lambda config: product.product(x, weight, added, config=config, parts=parts),
        lambda: product.reference(x, weight, added),
        bytes=weight_bytes(weight) + rows * sum(sizes) * inputs.dtype.itemsize,
        operations=2 * rows * sizes.outputs * sizes.inputs,
        peers={} if whole is None else {"cuBLAS, dequantized": lambda: functional.linear(x, whole, added)},
    )


def dequantizing(inputs: Inputs, sizes: Sizes, groups: Groups) -> Case:
    weight = packed_weights(groups, sizes, inputs.device)
    return returning(
        lambda config: dequantize.dequantize(weight, inputs.dtype, config=config),
        lambda: dequantize.reference(weight, inputs.dtype),
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
    """Raises AssertionError where one value differs by more than rounding, or more than one in 1,000 at all."""
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
    return returning(
        lambda config: rows.quantize_rows(x, form, config=config),
        lambda: rows.reference(x, form),
        alike,
        bytes=x.numel() * inputs.dtype.itemsize + row_bytes(count, width, form),
    )


def normed_rows(inputs: Inputs, count: int, width: int, form: RowFormat) -> Case:
    hidden, change = inputs.normal(count, width), inputs.normal(count, width)
    weight = inputs.normal(width, dtype=torch.float32)
    launch = partial(norm_rows.norm_rows, change=change, weight=weight, eps=NORM_EPS, form=form)

    def check(config: Config | None) -> None:
        ours, theirs = hidden.clone(), hidden.clone()
        found = norm_rows.norm_rows(ours, change, weight, NORM_EPS, form, config=config)
        alike(found, norm_rows.reference(theirs, change, weight, NORM_EPS, form))
        assert ours.equal(theirs), "another sum"

    return Case(
        lambda config: launch(hidden, config=config),
        check,
        bytes=3 * hidden.numel() * inputs.dtype.itemsize + row_bytes(count, width, form),
        peers={"two launches": lambda: norm_rows.reference(hidden, change, weight, NORM_EPS, form)},
    )


def gated_rows(inputs: Inputs, count: int, width: int, form: RowFormat, activation: Activation = "silu") -> Case:
    gate_up = inputs.normal(count, 2 * width)

    def two() -> QuantizedRows:
        return gate_rows.reference(gate_up, activation, form)

    return returning(
        lambda config: gate_rows.gate_rows(gate_up, activation, form, config=config),
        two,
        alike,
        bytes=gate_up.numel() * inputs.dtype.itemsize + row_bytes(count, width, form),
        peers={"two launches": two},
    )


TINY_LAYER, ODD_LAYER = Sizes(40, 96), Sizes(1000, 2880)
KERNELS = {
    "quantized_product": Kernel(
        "copy",
        product.CANDIDATE_CONFIGS,
        weight_product,
        full=[
            *grid(rows=[1, 8, 32, 64], sizes=GATE_UP, groups=INT4),
            *({"rows": n, "sizes": sizes, "groups": INT4} for sizes in (QKV, OUTPUT, DOWN) for n in (1, 32)),
            *(
                {"rows": n, "sizes": GATE_UP, "groups": groups}
                for groups in (AWQ, MXFP4, INT8, FP8, FP8_BLOCKS, Q4_K, Q6_K)
                for n in (1, 32)
            ),
        ],
        tiny=[
            *grid(rows=3, sizes=TINY_LAYER, groups=INT4, bias=True),
            *grid(rows=2, sizes=Sizes(40, 200), groups=AWQ, parts=2),
            *grid(rows=1, sizes=Sizes(40, 70), groups=[FP8, Q6_K]),
        ],
        compiled=[
            *grid(rows=[1, 32, 64, 128], sizes=OUTPUT, groups=[INT4, AWQ, FP8], parts=8),
            *grid(rows=[1, 128], sizes=ODD_LAYER, groups=[INT4, Q6_K, MXFP4], bias=True),
            *grid(rows=128, sizes=GATE_UP, groups=[MXFP4, INT8, FP8_BLOCKS, Q4_K, Q6_K]),
        ],
    ),
    "quantized_product_prefill": Kernel(
        "multiply",
        product.CANDIDATE_CONFIGS,
        weight_product,
        full=[
            *grid(rows=[256, 1023], sizes=GATE_UP, groups=[INT4, AWQ, INT8, FP8]),
            *grid(rows=512, sizes=DOWN, groups=INT4),
        ],
        tiny=grid(rows=140, sizes=TINY_LAYER, groups=INT4),
        compiled=grid(rows=200, sizes=ODD_LAYER, groups=AWQ, bias=True),
    ),
    "quantized_dequantize": Kernel(
        "copy",
        dequantize.CANDIDATE_CONFIGS,
        dequantizing,
        full=[*grid(sizes=GATE_UP, groups=[INT4, AWQ, FP8]), *grid(sizes=DOWN, groups=INT4)],
        tiny=[*grid(sizes=TINY_LAYER, groups=INT4), *grid(sizes=Sizes(40, 100), groups=Q6_K)],
        compiled=grid(sizes=ODD_LAYER, groups=[INT4, MXFP4, Q6_K]),
    ),
    "quantized_row_product": Kernel(
        "multiply",
        row_product.CANDIDATE_CONFIGS,
        quantized_row_product,
        full=[
            *grid(rows=[256, 2048, 8192], sizes=GATE_UP, groups=[INT8, FP8, FP8_BLOCKS]),
            *({"rows": 2048, "sizes": sizes, "groups": each} for sizes in (QKV, OUTPUT, DOWN) for each in (INT8, FP8)),
        ],
        tiny=[
            *grid(rows=140, sizes=TINY_LAYER, groups=INT8, bias=True),
            *grid(rows=130, sizes=Sizes(40, 70), groups=FP8),
            *grid(rows=131, sizes=Sizes(40, 256), groups=FP8_BLOCKS),
        ],
        compiled=[
            *grid(rows=256, sizes=ODD_LAYER, groups=[INT8, FP8, FP8_BLOCKS], bias=True),
            *grid(rows=200, sizes=Sizes(1000, 1000), groups=[INT8, FP8]),
            *grid(rows=200, sizes=Sizes(1000, 4096), groups=Groups("int8", 128)),
        ],
        launched=has_row_product,
    ),
    "quantized_rows": Kernel(
        "copy",
        rows.CANDIDATE_CONFIGS,
        row_quantizing,
        full=grid(count=[256, 8192], width=4096, form=ROW_FORMATS),
        tiny=[*grid(count=3, width=40, form=ROWS_INT8), *grid(count=3, width=200, form=ROWS_BLOCKS)],
        compiled=grid(count=200, width=[576, 2880, 1 << 15], form=ROW_FORMATS),
    ),
    "quantized_norm_rows": Kernel(
        "copy",
        norm_rows.CANDIDATE_CONFIGS,
        normed_rows,
        full=grid(count=[256, 8192], width=4096, form=[ROWS_INT8, ROWS_BLOCKS]),
        tiny=[*grid(count=3, width=40, form=ROWS_INT8), *grid(count=2, width=200, form=ROWS_BLOCKS)],
        compiled=grid(count=200, width=[576, 7168, 1 << 14], form=ROW_FORMATS),
    ),
    "quantized_gate_rows": Kernel(
        "copy",
        gate_rows.CANDIDATE_CONFIGS,
        gated_rows,
        full=grid(count=[256, 8192], width=14336, form=[ROWS_INT8, ROWS_BLOCKS]),
        tiny=[
            *grid(count=3, width=40, form=ROWS_INT8),
            *grid(count=2, width=200, form=ROWS_BLOCKS, activation="gelu_tanh"),
        ],
        compiled=[
            *grid(count=200, width=[1536, 8192, 1 << 15], form=ROW_FORMATS),
            *grid(count=200, width=6912, form=ROWS_INT8, activation="gelu_tanh"),
            *grid(count=200, width=2880, form=ROWS_INT8, activation="clamped_swiglu"),
        ],
    ),
}
