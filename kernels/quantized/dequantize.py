"""Dequantizes a packed weight to `[out, in]`, for products with a thousand rows and more.

    w[o, i] = scales[i // group, o] v[o, i] + offsets[i // group, o]

Rounded once, to the requested format. With so large batches the product takes far longer than writing and reading the
dequantized weight, and a library's product is faster than a kernel that unpacks weights for each tile of rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import launched_directly
from kernels.quantized.four_bits import inputs_of_step, load_term, load_words, plane_values
from kernels.quantized.packed import PackedWeight
from kernels.quantized.packed import reference as unpacked
from kernels.quantized.steps import RUN_BYTES, in_step, load_codes, load_pair, scaled
from kernels.sizes import tile_count
from kernels.tuning import Config, tuned

CANDIDATE_CONFIGS = (
    Config({"TILE": 64, "RUNS": 4}, warps=4),
    Config({"TILE": 32, "RUNS": 4}, warps=4),
    Config({"TILE": 128, "RUNS": 2}, warps=8),
)
"""The first is the default."""


def dequantize(weight: PackedWeight, dtype: torch.dtype, *, config: Config | None = None) -> Tensor:
    """Returns the dequantized weight `[out, in]` in fp32, bf16 or fp16.

    Example: int4 `[28672, 4096]` in groups of 32 gives as many numbers in bf16, 235 MB.
    """
    outputs, inputs = weight.outputs, weight.inputs
    found = torch.empty((outputs, inputs), dtype=dtype, device=weight.codes.device)
    shape = f"{str(dtype).removeprefix('torch.')},{weight.name}"
    options = (config or tuned("quantized_dequantize", shape, found.device, CANDIDATE_CONFIGS[0])).options()
    runs = len(weight.codes)
    in_runs = weight.runs_of_step(options.pop("RUNS"))
    offsets = weight.offsets
    _unpack[tile_count(outputs, options["TILE"]), tile_count(runs, in_runs)](
        weight.codes,
        weight.scales,
        weight.scales if offsets is None else offsets,
        found,
        inputs,
        outputs,
        runs,
        len(weight.scales),
        KIND=weight.kind,
        GROUP=weight.even_group,
        OFFSETS=offsets is not None,
        EVEN=inputs % (in_runs * weight.in_run) == 0,
        RUNS=in_runs,
        **options,
    )
    return found


@launched_directly
@triton.jit
def _unpack(
    codes: tl.tensor,
    scales: tl.tensor,
    offsets: tl.tensor,
    found: tl.tensor,
    inputs: tl.tensor,
    outputs: tl.tensor,
    runs: tl.tensor,
    groups: tl.tensor,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    OFFSETS: tl.constexpr,
    EVEN: tl.constexpr,
    TILE: tl.constexpr,
    RUNS: tl.constexpr,
) -> None:
    width = tl.zeros([], tl.int64) + outputs
    output = tl.program_id(0) * TILE + tl.arange(0, TILE)
    valid = (output < outputs)[:, None]
    row = tl.where(output < outputs, output, 0)
    target = found + output.to(tl.int64)[:, None] * inputs
    step, lane = tl.program_id(1), tl.arange(0, RUNS * RUN_BYTES)
    ZEROS: tl.constexpr = OFFSETS and offsets.dtype.element_ty == tl.int16
    if KIND == "int4" or KIND == "fp4":
        words = load_words(codes, row, step * RUNS, width, runs, RUNS)
        first = step * inputs_of_step(RUNS)
        for plane in tl.static_range(4):
            offset = load_term(offsets, row, first, width, groups, GROUP, plane, EVEN)
            weight = plane_values(words, offset, tl.zeros([1], tl.float32), plane, KIND, ZEROS)
            weight *= load_term(scales, row, first, width, groups, GROUP, plane, EVEN).to(tl.float32)[:, None]
            if OFFSETS and not ZEROS:
                weight += offset.to(tl.float32)[:, None]
            column = (first + lane // 32 * 128 + plane * 32 + lane % 32)[None, :]
            tl.store(target + column, weight.to(found.dtype.element_ty), mask=valid & (column < inputs))
    else:
        first = step * in_step(RUNS)
        scale, other_scale = load_pair(scales, row, first, width, groups, GROUP, RUNS)
        offset, other_offset = scale, other_scale
        if OFFSETS:
            offset, other_offset = load_pair(offsets, row, first, width, groups, GROUP, RUNS)
        tile = load_codes(codes, row, step * RUNS, width, runs, EVEN, RUNS)
        half = lane[None, :] < RUNS * RUN_BYTES // 2
        both = tl.where(half, scale[:, None], other_scale[:, None])
        weight = scaled(tile, both, tl.where(half, offset[:, None], other_offset[:, None]), KIND, True, OFFSETS)
        column = (first + lane)[None, :]
        tl.store(target + column, weight.to(found.dtype.element_ty), mask=valid & (column < inputs))


def reference(weight: PackedWeight, dtype: torch.dtype) -> Tensor:
    """Computes the same with torch operators, in fp64."""
    return unpacked(weight).to(dtype)
