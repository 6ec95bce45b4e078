"""Describes the size and format of a model's KV, including the values that two workers must agree on for a handoff."""

import torch

from contracts.kinds import KVDtype
from contracts.kv.spec import KVGroup, KVSpec
from engine.device import dtype_name
from engine.model.config import TextModel, computation
from engine.model.kv_layout import bytes_of_vector, kv_layouts


def make_spec(
    config: TextModel, dtype: torch.dtype, block_tokens: int, weights: str, kv_dtype: KVDtype = "auto"
) -> KVSpec:
    """Groups all layers with the same KV layout and window. `weights` is a digest of the model's weights.

    `dtype` is the model's number format, which KV has too unless `kv_dtype` is given.
    """
    layouts = kv_layouts(layer.attention for layer in config.layers)
    groups = tuple(
        KVGroup(
            layout.kind,
            layers,
            block_tokens,
            block_bytes=layout.vectors
            * (
                block_tokens * layout.width * dtype.itemsize
                if kv_dtype == "auto"
                else bytes_of_vector(layout, block_tokens)
            ),
            vectors=layout.vectors,
            window=layout.window,
            parts=layout.parts,
        )
        for layout, layers in layouts.items()
    )
    axes = " ".join(layout.axes for layout in layouts)
    return KVSpec(
        groups, f"{axes} {computation(config).decode()}", weights, dtype_name(dtype) if kv_dtype == "auto" else kv_dtype
    )
