"""What layers store for each token. Layers with the same layout form a KV group, which shares block tables and hits.

A layer of a pool is `[blocks, vectors, block, width]` in the model's number format. Quantized (`--kv-dtype`) it is
`[blocks, vectors, bytes]`, int8 or fp8 (e4m3): for each vector the block's values `[block, width]`, one byte each, then
its scales, bf16 `[parts, block]`. x' = q scale, with a scale for each token and *part* of a vector:

    scale = bf16(max |x| / 127)   q = round(x / scale), to the nearest integer, ties to even             int8
    scale = bf16(max |x| / 448)   q = the nearest e4m3 number to x / scale, ties to even                 fp8

- Each token has its own scales, so stored values never change. A scale for a whole block would grow while the block
  fills, and values would be rounded again.
- A key and a value are one part each. A latent vector and the key after it differ much in magnitude, so they are two
  parts of one vector: with one scale, int8 would lose a tenth of the smaller part's values.
- A vector's values and scales lie together, and a key's beside its value's, so that one KV head of a block, or several
  heads, are one contiguous read. Scales come after all values, which keeps rows of values aligned to words.
- Scales are bf16: fp32's range, and decoding is a shift. Their rounding costs only 1 / 512 of a quantization step,
  since values are divided by the rounded scale. q scale is exact in fp32.
- If a value of a vector is not finite, its scale is NaN and all q are 0, so that the fault stays visible.

A block of bf16 in heads of 64 or 128 values takes 1.94 or 1.97 times as much.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from msgspec import Struct
from torch import Tensor

from contracts.kv.spec import POOL_SCALE_BYTES
from engine.model.config import HeadAttention, LatentAttention

AnyAttention = HeadAttention | LatentAttention


class KVLayout(Struct, frozen=True):
    """What one layer stores for a token: `vectors` vectors of `width` values."""

    kind: Literal["full", "window", "latent"]
    window: int  # tokens that a query sees, itself included; 0: all
    vectors: int
    parts: tuple[int, ...]  # values of a vector that share a scale
    axes: str  # meaning of a block's axes, for the digest

    @property
    def width(self) -> int:
        return sum(self.parts)


def layout_of(attention: AnyAttention) -> KVLayout:
    match attention:
        case HeadAttention(kv_heads=heads, head_dim=dim, window=window):
            axes = f"[block,kv_head:{heads},key|value,token,dim:{dim}]"
            return KVLayout("window" if window else "full", window, 2 * heads, (dim,), axes)
        case LatentAttention(latent_rank=latent, rope_dim=rotated):
            return KVLayout("latent", 0, 1, (latent, rotated), f"[block,token,latent:{latent}|rotated_key:{rotated}]")


def kv_layouts(attentions: Iterable[AnyAttention]) -> dict[KVLayout, tuple[int, ...]]:
    """Returns the distinct layouts of a model's layers with their layers, in the order of its KV groups.

    The order is by first appearance, layouts without a window first.
    """
    layouts = [layout_of(attention) for attention in attentions]
    ordered = sorted(dict.fromkeys(layouts), key=lambda layout: layout.window > 0)
    return {layout: tuple(at for at, each in enumerate(layouts) if each == layout) for layout in ordered}


def groups_of_layers(attentions: Iterable[AnyAttention]) -> tuple[int, ...]:
    numbers = {layer: group for group, layers in enumerate(kv_layouts(attentions).values()) for layer in layers}
    return tuple(numbers[layer] for layer in range(len(numbers)))


KVForm = Literal["int8", "fp8"]
KV_FORM_BY_DTYPE: dict[torch.dtype, KVForm] = {torch.int8: "int8", torch.float8_e4m3fn: "fp8"}


@dataclass(frozen=True, slots=True)
class QuantizedLayer:
    """A view of one layer of a quantized pool."""

    form: KVForm
    memory: Tensor  # uint8 [blocks, vectors, bytes]
    block: int
    parts: tuple[int, ...]

    @property
    def values(self) -> Tensor:
        """Returns a view of the values, uint8 `[blocks, vectors, block, width]`."""
        width = sum(self.parts)
        values: Tensor = self.memory[..., : self.block * width].unflatten(-1, (self.block, width))
        return values

    @property
    def scales(self) -> Tensor:
        """Returns a view of the scales, bf16 `[blocks, vectors, parts, block]`."""
        behind = self.memory[..., self.block * sum(self.parts) :].view(torch.bfloat16)
        scales: Tensor = behind.unflatten(-1, (len(self.parts), self.block))
        return scales


def bytes_of_vector(layout: KVLayout, block: int) -> int:
    return block * (layout.width + len(layout.parts) * POOL_SCALE_BYTES)


def quantized_layer(layer: Tensor, attention: AnyAttention) -> QuantizedLayer | None:
    """Returns the view of a pool's layer; None if the pool is not quantized."""
    if layer.dtype not in KV_FORM_BY_DTYPE:
        return None
    layout = layout_of(attention)
    block, rest = divmod(layer.shape[-1], bytes_of_vector(layout, 1))
    assert not rest and layer.shape[1] == layout.vectors, "a layer of another layout"
    return QuantizedLayer(KV_FORM_BY_DTYPE[layer.dtype], layer.view(torch.uint8), block, layout.parts)
