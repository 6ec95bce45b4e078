"""The KV cache, described in bytes: what pool, grant, frames and sizing see. Only attention knows about heads."""

import hashlib
from typing import Literal

import msgspec
from msgspec import Struct


def kv_bytes(batch: int, tokens: int, layers: int, kv_heads: int, head_dim: int, value_bytes: int) -> int:
    """Memory of the KV cache in bytes: of `batch` sequences of `tokens` tokens, a key and a value for each KV head."""
    return batch * tokens * layers * 2 * kv_heads * head_dim * value_bytes


class KVGroup(Struct, frozen=True):
    """Layers that store the same thing per token, and so share block tables, cache hits and freeing."""

    kind: Literal["full", "window", "latent", "state"]
    layers: tuple[int, ...]
    block_tokens: int
    block_bytes: int  # of one block of one layer
    shards: int = 1


class KVSpec(Struct, frozen=True):
    """All groups of a model, and the words that two ends must agree on before bytes may pass between them.

    `layout` names what the bytes mean: value type, KV heads, head size, order of the axes, rope parameters.
    `weights` is a digest of the weights, because KV of other weights is noise of the right size.
    """

    groups: tuple[KVGroup, ...]
    layout: str
    weights: str

    def fingerprint(self) -> str:
        """32 hexadecimal digits; equal if and only if blocks can be passed as they are."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:32]

    def block_bytes(self) -> int:
        """Bytes of one block over all groups and layers."""
        return sum(group.block_bytes * len(group.layers) for group in self.groups)

    def token_bytes(self) -> int:
        """Bytes that one more token costs."""
        return sum(group.block_bytes * len(group.layers) // group.block_tokens for group in self.groups)


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Blocks that hold `tokens` tokens."""
    return -(-tokens // block_tokens)
