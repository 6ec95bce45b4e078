"""Reads weights in fp8 (e4m3) and their scales: one for the whole weight, for an output, for a group or for a block."""

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
"""Ends of the names of scales for activations and KV, which are in the model's own format here."""

Block = tuple[int, int]
"""Outputs and inputs that share a scale."""


def is_numbers(stored: StoredTensors, name: str) -> bool:
    """Tells whether the weight of the layer `name` is there as numbers. Raises `ModelError` where it is missing."""
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
    """Reads the weight of the layer `name` whose `scale`, in a float format, is for blocks of this size.

    Raises `ModelError` where a tensor is missing, or there are other numbers of blocks.
    """
    values = stored.packed(f"{name}.weight", shape, FP8_DTYPE)
    scales = by_block(stored, model, f"{name}.{scale}", shape, block)
    return Quantized("fp8", values, scales, min(block[1], shape[1]), meets_bytes=meets_bytes)


def by_block(
    stored: StoredTensors, model: str, name: str, shape: tuple[int, int], block: Block, kind: str = ""
) -> Tensor:
    """Returns the scales fp32 `[out, groups]` of blocks of a weight `[out, in]`, or zero points, stored as `kind`.

    Those that are of outputs, or of the whole weight, may be stored without the axes that they do not need.
    """
    blocks = tuple(-(-size // part) for size, part in zip(shape, block, strict=True))
    found = stored.shape(name)
    if [size for size in found if size != 1] != [size for size in blocks if size != 1]:
        what = f"blocks of {block[0]} x {block[1]} make {list(blocks)} of a weight {list(shape)}"
        raise ModelError(f"{model}: {name} has shape {list(found)}, but {what}")
    there = stored.packed(name, found, kind) if kind else stored.tensor(name, found)
    return there.float().view(blocks).repeat_interleave(min(block[0], shape[0]), 0)[: shape[0]].contiguous()


def first_held(stored: StoredTensors, layer: str, names: Iterable[str]) -> str:
    """Returns the first of the `names` that the layer has a tensor of; the last where it has none, to be missed."""
    tried = list(names)
    return next((name for name in tried if stored.holds(f"{layer}.{name}")), tried[-1])
