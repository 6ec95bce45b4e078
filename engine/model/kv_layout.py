"""Says what layers store of each token, and which of them store alike: those share block tables, hits and freeing.

A layer of a pool is `[blocks, vectors, block, width]` in the number format of the model. Quantized (`--kv-dtype`) it is
`[blocks, vectors, bytes]`, int8 or fp8 (e4m3): of each vector, the block's values `[block, width]`, a byte each, and
behind them its scales, bf16 `[parts, block]`. x' = q scale, with a scale for each token and *part* of a vector:

    scale = bf16(max |x| / 127)   q = round(x / scale), to the nearest integer, ties to even             int8
    scale = bf16(max |x| / 448)   q = the nearest e4m3 number to x / scale, ties to even                 fp8

- A token has scales of its own, so what is stored never changes, whatever comes behind it in its block: a scale for
  each block would be raised as it fills, and what was rounded once would be rounded again.
- A key and a value are a part each. A latent vector and the key behind it, which differ by far in size, are two parts
  of one vector: with one scale, int8 would lose a tenth of the smaller's numbers.
- A vector's values and its scales lie together, and those of a key beside those of its value, so that one KV head of a
  block is read in one run, and a share of the heads is. Rows of values begin where the row before ends: not between
  scales, which would leave none of them at a whole word.
- A scale is bf16: it has fp32's range, so no vector is too small or too large for it, and decoding one is a shift. That
  it is rounded costs nothing but 1 / 512 of a step: values are divided by what it was rounded to. q scale is exact in
  fp32.
- Of a vector with a number that is not finite the scale is NaN and all q are 0: it stays visible to whoever reads it.

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
    """Describes what one layer stores of a token: so many vectors of so many values, seen through a window."""

    kind: Literal["full", "window", "latent"]
    window: int  # tokens that a query sees, itself included; 0 is all
    vectors: int
    parts: tuple[int, ...]  # values of a vector, those together that are of one size: they share a scale
    axes: str  # what the values of a block mean

    @property
    def width(self) -> int:
        """Returns the values of a vector."""
        return sum(self.parts)


def layout_of(attention: AnyAttention) -> KVLayout:
    """Returns what a layer stores: a key and a value for each KV head, or one latent vector with the rotated key."""
    match attention:
        case HeadAttention(kv_heads=heads, head_dim=dim, window=window):
            axes = f"[block,kv_head:{heads},key|value,token,dim:{dim}]"
            return KVLayout("window" if window else "full", window, 2 * heads, (dim,), axes)
        case LatentAttention(latent_rank=latent, rope_dim=rotated):
            return KVLayout("latent", 0, 1, (latent, rotated), f"[block,token,latent:{latent}|rotated_key:{rotated}]")


def kv_layouts(attentions: Iterable[AnyAttention]) -> dict[KVLayout, tuple[int, ...]]:
    """Returns the different layouts of a model's layers, in the order of its KV groups, each with its layers.

    They stand by first appearance, those without a window first.
    """
    layouts = [layout_of(attention) for attention in attentions]
    ordered = sorted(dict.fromkeys(layouts), key=lambda layout: layout.window > 0)
    return {layout: tuple(at for at, each in enumerate(layouts) if each == layout) for layout in ordered}


def groups_of_layers(attentions: Iterable[AnyAttention]) -> tuple[int, ...]:
    """Returns of each of a model's layers the number of its KV group."""
    numbers = {layer: group for group, layers in enumerate(kv_layouts(attentions).values()) for layer in layers}
    return tuple(numbers[layer] for layer in range(len(numbers)))


KVForm = Literal["int8", "fp8"]
KV_FORM_BY_DTYPE: dict[torch.dtype, KVForm] = {torch.int8: "int8", torch.float8_e4m3fn: "fp8"}
"""Forms of quantized pools, by the number format of their layers."""


@dataclass(frozen=True, slots=True)
class QuantizedLayer:
    """Views a layer of a quantized pool: bytes with a scale for each token and part of a vector."""

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
    """Returns the bytes of a vector of a quantized block."""
    return block * (layout.width + len(layout.parts) * POOL_SCALE_BYTES)


def quantized_layer(layer: Tensor, attention: AnyAttention) -> QuantizedLayer | None:
    """Returns the view of a pool's layer; None where it is not quantized."""
    if layer.dtype not in KV_FORM_BY_DTYPE:
        return None
    layout = layout_of(attention)
    block, rest = divmod(layer.shape[-1], bytes_of_vector(layout, 1))
    assert not rest and layer.shape[1] == layout.vectors, "a layer of another layout"
    return QuantizedLayer(KV_FORM_BY_DTYPE[layer.dtype], layer.view(torch.uint8), block, layout.parts)
