"""The interface for converting KV blocks to wire formats, and the placement of a payload's tokens in a pool."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from contracts.kinds import Codec
from contracts.kv.spec import SCALE_BYTES, VALUE_BYTES, PayloadConversion, WireForm, blocks_for
from engine.plan import NULL_BLOCK


@dataclass(frozen=True)
class Landing:
    """The tokens of a payload to write, and their blocks. Tokens are counted from the first of `blocks`."""

    form: WireForm
    blocks: list[int]  # blocks of the pool to write to, without null blocks
    first: int  # first token of the payload; negative if it begins before `blocks`
    begin: int  # first token to write
    end: int  # end of the tokens to write


class BlockCodec(Protocol):
    """Converts blocks of one layer of a pool, `[blocks, vectors, block, width]` in fp32, bf16 or fp16.

    `parts` are the lengths of the parts of a vector that share a scale, as in `KVGroup.parts`; empty: one scale for
    all. Called by the I/O thread: must not start threads, as only the engine's thread may.
    """

    def encode(self, layer: Tensor, blocks: Tensor, codec: Codec, parts: Sequence[int] = ()) -> Tensor:
        """Encodes `blocks`, int64 on the layer's device, as uint8 `[blocks, bytes]`; `codec` must not be "none".

        Rounds like `kernels.block_copy`: to nearest, ties to even; non-finite values become 0.
        """
        ...

    def decode(self, payload: Tensor, landing: Landing, layer: Tensor, parts: Sequence[int] = ()) -> None:
        """Writes tokens of uint8 `[blocks, bytes]`, on the layer's device, to their places.

        Values are rounded to nearest, ties to even; values already in the pool's format stay unchanged.
        """
        ...


def bytes_of(form: WireForm, vectors: int, width: int, parts: Sequence[int] = ()) -> int:
    """Returns the bytes of one block of one layer in a wire form with `width` values for each token and vector."""
    values = vectors * form.block_tokens * width
    if form.codec == "none":
        return values * VALUE_BYTES[form.dtype]
    return vectors * max(1, len(parts)) * SCALE_BYTES + values


def landing_of(piece: PayloadConversion, count: int, block_tokens: int) -> Landing | None:
    """Finds where a payload of `count` blocks lands in a pool of `block_tokens`; None if no token is written.

    A table begins with null blocks where a window hides its positions.
    """
    begin = max(piece.first, piece.held)
    end = min(piece.first + count * piece.form.block_tokens, len(piece.blocks) * block_tokens)
    skipped, last = begin // block_tokens, blocks_for(end, block_tokens)
    while skipped < last and piece.blocks[skipped] == NULL_BLOCK:
        skipped += 1
    origin = skipped * block_tokens
    begin = max(begin, origin)
    if begin >= end:
        return None
    blocks = piece.blocks[skipped:last]
    assert NULL_BLOCK not in blocks, "the null block is never written"
    return Landing(piece.form, blocks, piece.first - origin, begin - origin, end - origin)
