"""Reads fp8 (e4m3) weights and their scales: for the whole weight, an output, a group or a block."""

from collections.abc import Iterable

from torch import Tensor

from contracts.errors import ModelError
from engine.model.formats.format import StoredTensors
from engine.model.quantized import Quantized

FP8_DTYPE = "F8_E4M3"
FLOAT_DTYPES = {"F32", "BF16", "F16"}
ACTIVATION_SCALE_SUFFIXES = (
    ".input_scale",
    ".input_scale_ub",
    ".activation_scale",
    ".k_scale",
    ".v_scale",
    ".q_scale",
    ".output_scale",
)
"""Suffixes of static scales for activations and KV, which are not read."""

Block = tuple[int, int]
"""Outputs and inputs that share a scale."""


def is_float(stored: StoredTensors, name: str) -> bool:
    """Returns whether the weight of the layer `name` is stored as floats. Raises `ModelError` if it is missing."""
    return stored.kind(f"{name}.weight") in FLOAT_DTYPES


def fp8(
    stored: StoredTensors,
    model: str,
    name: str,
    shape: tuple[int, int],
    scale: str,
    block: Block,
    meets_bytes: bool,
) -> Quantized:
    """Reads the weight of the layer `name`, whose tensor `scale` has a float for each block of this size.

    Raises `ModelError` if a tensor is missing or has another number of blocks.
    """
    values = stored.packed(f"{name}.weight", shape, FP8_DTYPE)
    scales = by_block(stored, model, f"{name}.{scale}", shape, block)
    return Quantized("fp8", values, scales, min(block[1], shape[1]), meets_bytes=meets_bytes)


def by_block(
    stored: StoredTensors, model: str, name: str, shape: tuple[int, int], block: Block, kind: str = ""
) -> Tensor:
    """Returns a weight's scales by block, fp32 `[out, groups]`, or its zero points, stored as `kind`.

    Axes of length 1 may be missing in the stored shape.
    """
    blocks = tuple(-(-size // part) for size, part in zip(shape, block, strict=True))
    found = stored.shape(name)
    if [size for size in found if size != 1] != [size for size in blocks if size != 1]:
        what = f"blocks of {block[0]} x {block[1]} make {list(blocks)} of a weight {list(shape)}"
        raise ModelError(f"{model}: {name} has shape {list(found)}, but {what}")
    there = stored.packed(name, found, kind) if kind else stored.tensor(name, found)
    return there.float().view(blocks).repeat_interleave(min(block[0], shape[0]), 0)[: shape[0]].contiguous()


def first_held(stored: StoredTensors, layer: str, names: Iterable[str]) -> str:
    """Returns the first of `names` that the layer has; the last one if it has none, for the error to name."""
    tried = list(names)
    return next((name for name in tried if stored.holds(f"{layer}.{name}")), tried[-1])
