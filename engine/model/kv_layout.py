"""Says what layers store of each token, and which of them store alike: those share block tables, hits and freeing."""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from engine.model.config import HeadAttention, LatentAttention

AnyAttention = HeadAttention | LatentAttention


class KVLayout(Struct, frozen=True):
    """Describes what one layer stores of a token: so many vectors of so many values, seen through a window."""

    kind: Literal["full", "window", "latent"]
    window: int  # tokens that a query sees, itself included; 0 is all
    vectors: int
    width: int
    axes: str  # what the values of a block mean


def layout_of(attention: AnyAttention) -> KVLayout:
    """Returns what a layer stores: a key and a value for each KV head, or one latent vector with the rotated key."""
    match attention:
        case HeadAttention(kv_heads=heads, head_dim=dim, window=window):
            axes = f"[block,kv_head:{heads},key|value,token,dim:{dim}]"
            return KVLayout("window" if window else "full", window, 2 * heads, dim, axes)
        case LatentAttention(latent_rank=latent, rope_dim=rotated):
            return KVLayout("latent", 0, 1, latent + rotated, f"[block,token,latent:{latent}|rotated_key:{rotated}]")


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
