"""Describes the KV cache in bytes, as pool, grant, frames and sizing see it. Only attention knows about heads."""

import hashlib
from typing import Literal, get_args

import msgspec
from msgspec import Struct, structs

from contracts.errors import ConfigError
from contracts.kinds import BlockSize, Codec, KVDtype

VALUE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
BLOCK_SIZES = frozenset(get_args(BlockSize))
QUANTIZED_DTYPES = frozenset({"fp8", "int8"})
"""Number formats of pools whose values have a byte each, and scales beside them."""
SCALE_BYTES = 4
"""A scale is fp32, and stands in front of the values of a block that a codec has made."""
POOL_SCALE_BYTES = 2
"""A scale is bf16 in a quantized pool, where each token has its own."""


def kv_bytes(batch: int, tokens: int, layers: int, kv_heads: int, head_dim: int, value_bytes: int) -> int:
    """Returns the bytes of the KV cache of `batch` sequences of `tokens` tokens, a key and a value for each KV head."""
    return batch * tokens * layers * 2 * kv_heads * head_dim * value_bytes


class KVGroup(Struct, frozen=True):
    """Describes layers that store the same thing per token, and so share block tables, cache hits and freeing."""

    kind: Literal["full", "window", "latent", "state"]
    layers: tuple[int, ...]
    block_tokens: int
    block_bytes: int  # bytes of one block of one layer
    shards: int = 1
    vectors: int = 1  # stored per token and layer: a key and a value for each KV head
    window: int = 0  # tokens that a query sees, itself included; 0: all before it
    parts: tuple[int, ...] = ()  # values of a vector that share a scale, where there are scales; empty: all of them

    def first_needed(self, position: int) -> int:
        """Returns the first block of a text that a query at `position` sees; no later one sees an earlier block."""
        return max(0, position - self.window + 1) // self.block_tokens if self.window else 0

    def needed_blocks(self, tokens: int) -> range:
        """Returns those blocks of a text of `tokens` tokens that the first query behind it sees."""
        return range(self.first_needed(tokens), blocks_for(tokens, self.block_tokens))

    def most_blocks(self, ahead: int) -> int:
        """Counts the blocks that a text of any length holds at once, while `ahead` tokens of it are being computed.

        Those tokens, and as many before them as the first one sees, may begin anywhere in a block. Only for a window.
        """
        assert self.window
        return 1 + blocks_for(self.window + ahead - 2, self.block_tokens)

    def layers_bytes(self) -> int:
        """Returns the bytes of one block of all its layers."""
        return self.block_bytes * len(self.layers)

    def width(self, dtype: str) -> int:
        """Returns the values of each vector of a token."""
        if self.parts:
            return sum(self.parts)
        return self.block_bytes // (self.block_tokens * self.vectors * VALUE_BYTES[dtype])

    def wire_bytes(self, codec: Codec, dtype: str) -> int:
        """Returns the bytes of a layer's block on its way. With a codec: a byte a value, a scale a vector's part."""
        if codec == "none":
            return self.block_bytes
        assert dtype not in QUANTIZED_DTYPES, "what is quantized passes as it lies"
        return self.block_bytes // VALUE_BYTES[dtype] + self.vectors * max(1, len(self.parts)) * SCALE_BYTES


class KVSpec(Struct, frozen=True):
    """Describes all groups of a model, and the words that two ends must agree on before bytes may pass between them.

    `layout` names what the values mean: KV heads, head size, order of the axes, rope parameters.
    `weights` is a digest of the weights, because KV of other weights is noise of the right size.
    """

    groups: tuple[KVGroup, ...]
    layout: str
    weights: str
    dtype: str = "bytes"  # number format of the values: fp32, bf16, fp16, fp8, int8; bytes: unknown, never converted

    def fingerprint(self) -> str:
        """Returns 32 hexadecimal digits, equal if and only if blocks can be passed as they are."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:32]

    def content(self) -> str:
        """Returns 32 hexadecimal digits of what the values mean in any format: equal if blocks can be converted.

        Those of a quantized pool never are: they pass to pools that have the same form and block size.
        """
        groups = [(group.kind, group.layers, group.shards, group.vectors, group.window) for group in self.groups]
        form = self.form().described() if self.quantized else ""
        return hashlib.sha256(msgspec.json.encode((groups, self.layout, self.weights, form))).hexdigest()[:32]

    @property
    def quantized(self) -> bool:
        """Tells whether values have a byte each, with a scale for each token and part of a vector."""
        return self.dtype in QUANTIZED_DTYPES

    def form(self, codec: Codec = "none") -> "WireForm":
        """Returns the form that this pool's blocks have on their way. All groups have one block size today."""
        return WireForm(self.dtype, self.groups[0].block_tokens, codec)

    def in_form(self, form: "WireForm") -> "KVSpec | None":
        """Returns the spec of a pool that keeps the same values in the form's format and block size, if there is one.

        If its fingerprint is a peer's, the peer's blocks can be converted into this pool's. What is quantized is not
        converted: it would be rounded twice, or take twice the room here, and pairs of workers would differ in quality.
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
        """Returns of each of the model's layers the number of its group."""
        numbers = {layer: number for number, group in enumerate(self.groups) for layer in group.layers}
        return tuple(numbers[layer] for layer in sorted(numbers))

    def block_bytes(self) -> int:
        """Returns the bytes of one block over all groups and layers."""
        return sum(group.layers_bytes() for group in self.groups)

    def token_bytes(self) -> int:
        """Returns the bytes that one more token of a long text costs: of groups without a window, if there are any."""
        stays = [group for group in self.groups if not group.window] or self.groups
        return sum(group.layers_bytes() // group.block_tokens for group in stays)


class WireForm(Struct, frozen=True):
    """Says what a block's bytes are on their way: those of the sender's pool, or what a codec made of them.

    With a codec a block of a layer is its scales, fp32 `[vectors, parts]`, and its values, a byte each,
    `[vectors, block_tokens, width]`: int8, or fp8 e4m3. value = scale * byte, with the scale of the value's part of its
    vector (`KVGroup.parts`). A quantized pool has no codec: its blocks travel as they lie
    (`engine/model/kv_layout.py`).
    """

    dtype: str  # number format of the sender's pool
    block_tokens: int  # tokens of one of the sender's blocks
    codec: Codec = "none"

    def described(self) -> str:
        """Names the form of a pool's blocks, for people."""
        return f"{self.dtype:.16} in blocks of {self.block_tokens}"


class PayloadConversion(Struct, frozen=True):
    """Describes a payload in another form than the pool's, and the place of its tokens in the pool."""

    form: WireForm
    group: int
    layer: int
    blocks: list[int]  # the sequence's whole block table in the pool
    first: int  # token of the sequence that the payload begins with; whole blocks of the sender follow
    held: int  # tokens before this one are in the pool already, and are not written


def refuse_codec_of_bytes(kv_dtype: KVDtype, codec: Codec) -> None:
    """Raises `ConfigError` for a codec of what is quantized in the pool already."""
    if kv_dtype != "auto" and codec != "none":
        why = (
            f"the pool has a byte for each value already (--kv-dtype {kv_dtype}), which passes as it is; leave it none"
        )
        raise ConfigError("--kv-codec", codec, why)


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Returns the number of blocks that hold `tokens` tokens."""
    return -(-tokens // block_tokens)
