"""The KV cache's layout in bytes, for pool, grants, frames and sizing. Only attention knows about heads."""

import hashlib
from typing import Literal, get_args

import msgspec
from msgspec import Struct, structs

from contracts.errors import ConfigError
from contracts.kinds import BlockSize, Codec, KVDtype

VALUE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
BLOCK_SIZES = frozenset(get_args(BlockSize))
QUANTIZED_DTYPES = frozenset({"fp8", "int8"})  # pool formats with one byte for each value, and scales
SCALE_BYTES = 4  # of an fp32 scale, in front of a block's values that a codec made
POOL_SCALE_BYTES = 2  # of a bf16 scale in a quantized pool, where each token has its own


def kv_bytes(batch: int, tokens: int, layers: int, kv_heads: int, head_dim: int, value_bytes: int) -> int:
    """Returns the bytes of the KV cache of `batch` sequences of `tokens` tokens, with a key and a value per KV head."""
    return batch * tokens * layers * 2 * kv_heads * head_dim * value_bytes


class KVGroup(Struct, frozen=True):
    """Layers with the same KV layout, which share block tables, cache hits and freeing."""

    kind: Literal["full", "window", "latent", "state"]
    layers: tuple[int, ...]
    block_tokens: int
    block_bytes: int  # of one layer
    shards: int = 1
    vectors: int = 1  # per token and layer: a key and a value for each KV head
    window: int = 0  # tokens that a query sees, including itself; 0: all before it
    parts: tuple[int, ...] = ()  # sizes of the parts of a vector with a scale each; empty: one part

    def first_needed(self, position: int) -> int:
        """Returns the first block that a query at `position`, or at a later one, sees."""
        return max(0, position - self.window + 1) // self.block_tokens if self.window else 0

    def needed_blocks(self, tokens: int) -> range:
        """Returns the blocks of the first `tokens` tokens that the query behind them sees."""
        return range(self.first_needed(tokens), blocks_for(tokens, self.block_tokens))

    def most_blocks(self, ahead: int) -> int:
        """Returns the maximum number of blocks that a sequence holds while `ahead` further tokens are computed.

        Only for groups with a window. The tokens of the window, which may begin anywhere in a block, end before the
        last of the `ahead` tokens.
        """
        assert self.window
        return 1 + blocks_for(self.window + ahead - 2, self.block_tokens)

    def layers_bytes(self) -> int:
        """Returns the bytes of one block in all layers."""
        return self.block_bytes * len(self.layers)

    def width(self, dtype: str) -> int:
        """Returns the number of values of a vector."""
        if self.parts:
            return sum(self.parts)
        return self.block_bytes // (self.block_tokens * self.vectors * VALUE_BYTES[dtype])

    def wire_bytes(self, codec: Codec, dtype: str) -> int:
        """Returns the bytes of a layer's block in transit. A codec: a byte per value, a scale per part of a vector."""
        if codec == "none":
            return self.block_bytes
        assert dtype not in QUANTIZED_DTYPES, "what is quantized passes as it lies"
        return self.block_bytes // VALUE_BYTES[dtype] + self.vectors * max(1, len(self.parts)) * SCALE_BYTES


class KVSpec(Struct, frozen=True):
    """All KV groups of a model, with what two workers must agree on to exchange KV.

    `layout` describes the values: KV heads, head size, order of the axes, rope parameters. `weights` is a digest of the
    weights, because KV of other weights is useless.
    """

    groups: tuple[KVGroup, ...]
    layout: str
    weights: str
    dtype: str = "bytes"  # number format: fp32, bf16, fp16, fp8, int8; bytes: unknown, never converted

    def fingerprint(self) -> str:
        """Returns 32 hexadecimal digits, equal if and only if blocks can be copied as they are."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:32]

    def content(self) -> str:
        """Returns 32 hexadecimal digits, equal if blocks can be converted into each other.

        Blocks of a quantized pool cannot be converted: they pass only to pools of the same format and block size.
        """
        groups = [(group.kind, group.layers, group.shards, group.vectors, group.window) for group in self.groups]
        form = self.form().described() if self.quantized else ""
        return hashlib.sha256(msgspec.json.encode((groups, self.layout, self.weights, form))).hexdigest()[:32]

    @property
    def quantized(self) -> bool:
        """Whether values have a byte each, with a scale for each token and part of a vector."""
        return self.dtype in QUANTIZED_DTYPES

    def form(self, codec: Codec = "none") -> "WireForm":
        """Returns the wire form of this pool's blocks. All groups have one block size today."""
        return WireForm(self.dtype, self.groups[0].block_tokens, codec)

    def in_form(self, form: "WireForm") -> "KVSpec | None":
        """Returns the spec of a pool with the same values in the form's format and block size; None if impossible.

        If its fingerprint is a peer's, the peer's blocks can be converted. Quantized KV is not converted: it would be
        rounded twice or take twice the memory, so quality would depend on the pair of workers.
        """
        if form.dtype == self.dtype and all(group.block_tokens == form.block_tokens for group in self.groups):
            return self
        if self.dtype not in VALUE_BYTES or form.dtype not in VALUE_BYTES or form.block_tokens not in BLOCK_SIZES:
            return None
        from_value, to_value = VALUE_BYTES[self.dtype], VALUE_BYTES[form.dtype]

        def converted(group: KVGroup) -> KVGroup:
            values = group.block_bytes // (group.block_tokens * from_value)  # of one token
            block_bytes = values * form.block_tokens * to_value
            return structs.replace(group, block_tokens=form.block_tokens, block_bytes=block_bytes)

        groups = tuple(converted(group) for group in self.groups)
        return structs.replace(self, dtype=form.dtype, groups=groups)

    def groups_of_layers(self) -> tuple[int, ...]:
        """Returns the group number of each of the model's layers."""
        numbers = {layer: number for number, group in enumerate(self.groups) for layer in group.layers}
        return tuple(numbers[layer] for layer in sorted(numbers))

    def block_bytes(self) -> int:
        """Returns the bytes of one block over all groups and layers."""
        return sum(group.layers_bytes() for group in self.groups)

    def token_bytes(self) -> int:
        """Returns the bytes of one more token of a long sequence: only of groups without a window, if there are any."""
        stays = [group for group in self.groups if not group.window] or self.groups
        return sum(group.layers_bytes() // group.block_tokens for group in stays)


class WireForm(Struct, frozen=True):
    """The format of blocks in transit: that of the sender's pool, or a codec's.

    With a codec, a layer's block is its scales, fp32 `[vectors, parts]`, then its values, a byte each, `[vectors,
    block_tokens, width]`: int8, or fp8 e4m3. value = scale * byte, with the scale of the value's part of the vector
    (`KVGroup.parts`). Blocks of a quantized pool are sent as they are (`engine/model/kv_layout.py`).
    """

    dtype: str  # of the sender's pool
    block_tokens: int  # of the sender's blocks
    codec: Codec = "none"

    def described(self) -> str:
        """Names the pool's format and block size for people."""
        return f"{self.dtype:.16} in blocks of {self.block_tokens}"


class PayloadConversion(Struct, frozen=True):
    """A payload in another format than the pool's, and where its tokens go in the pool."""

    form: WireForm
    group: int
    layer: int
    blocks: list[int]  # the sequence's block table in the pool
    first: int  # index of the payload's first token in the sequence; whole blocks of the sender follow
    held: int  # tokens before this index are in the pool already, and are not written


def refuse_codec_of_bytes(kv_dtype: KVDtype, codec: Codec) -> None:
    """Raises `ConfigError` for a codec together with a quantized pool."""
    if kv_dtype != "auto" and codec != "none":
        why = (
            f"the pool has a byte for each value already (--kv-dtype {kv_dtype}), which passes as it is; leave it none"
        )
        raise ConfigError("--kv-codec", codec, why)


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Returns tokens / block_tokens, rounded up."""
    return -(-tokens // block_tokens)
