"""How a backend converts KV blocks to the forms they travel in, and where a payload's tokens belong."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from contracts.kinds import Codec
from contracts.kv.spec import SCALE_BYTES, VALUE_BYTES, PayloadConversion, WireForm, blocks_for
from engine.plan import NULL_BLOCK


@dataclass(frozen=True)
class Landing:
    """Which tokens of a payload are written where. Tokens are counted from the first of `blocks`."""

    form: WireForm
    blocks: list[int]  # of the pool: those that get tokens, none of them the null block
    first: int  # token that the payload begins with; negative where it begins before `blocks`
    begin: int  # the first that is written
    end: int  # behind the last


class BlockCodec(Protocol):
    """Converts blocks of one layer of a pool, `[blocks, vectors, block, width]` in fp32, bf16 or fp16.

    `parts` are those values of a vector that share a scale, as `KVGroup.parts` has them; empty: all of them do.
    Called by the I/O thread: nothing here starts threads, as only the engine's may.
    """

    def encode(self, layer: Tensor, blocks: Tensor, codec: Codec, parts: Sequence[int] = ()) -> Tensor:
        """Encodes `blocks`, int64 on the layer's device, as uint8 `[blocks, bytes]` in the form of `codec`, not none.

        It rounds as `kernels.block_copy` does: to the nearest, ties to even; what is not finite is 0.
        """
        ...

    def decode(self, payload: Tensor, landing: Landing, layer: Tensor, parts: Sequence[int] = ()) -> None:
        """Writes tokens of uint8 `[blocks, bytes]`, on the layer's device, to their places.

        Values are rounded to the nearest, ties to even; those that are in the pool's format stay as they are.
        """
        ...


def bytes_of(form: WireForm, vectors: int, width: int, parts: Sequence[int] = ()) -> int:
    """Returns the bytes of one block of one layer in a form, which has `width` values for each token and vector."""
    values = vectors * form.block_tokens * width
    if form.codec == "none":
        return values * VALUE_BYTES[form.dtype]
    return vectors * max(1, len(parts)) * SCALE_BYTES + values


def landing_of(piece: PayloadConversion, count: int, block_tokens: int) -> Landing | None:
    """Finds where a payload of `count` blocks lands in a pool of `block_tokens`; None where no token is written.

    A table begins with null blocks where a window hides its places.
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
