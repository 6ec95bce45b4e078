"""Digests of KV blocks: XXH3 (64 bits) of a block's bytes, seeded with its place, and their sum over a handoff.

A handoff's digest is the sum modulo 2**64 over all (group, layer, block), so it does not depend on the order in which
layers leave; the seed is the place, so two swapped blocks change it. It guards against mistakes, not against an enemy.
"""

from collections.abc import Sequence

import xxhash

MODULUS = 1 << 64
Place = tuple[int, int, int]
"""(group, layer, block of the sequence)."""


def block_digests(
    group: int, layer: int, first: int, block_bytes: int, frames: Sequence[memoryview | bytes]
) -> list[int]:
    """One digest per block of a payload whose first block is block `first` of the sequence.

    Every frame is a whole number of blocks, however the payload was cut.
    """
    digests: list[int] = []
    for frame in frames:
        view = memoryview(frame).cast("B")
        assert len(view) % block_bytes == 0, "a frame is a whole number of blocks"
        for start in range(0, len(view), block_bytes):
            place = _seed(group, layer, first + len(digests))
            digests.append(xxhash.xxh3_64_intdigest(view[start : start + block_bytes], place))
    return digests


class HandoffDigest:
    """The running sum; with `trace`, also each block's own digest, for tests and for finding a wrong block."""

    def __init__(self, trace: bool = False) -> None:
        self.value = 0
        self.blocks: dict[Place, int] | None = {} if trace else None

    def add(self, group: int, layer: int, first: int, digests: Sequence[int]) -> None:
        """Adds the blocks `first`, `first` + 1, … of a layer."""
        self.value = (self.value + sum(digests)) % MODULUS
        if self.blocks is not None:
            self.blocks.update(((group, layer, first + at), digest) for at, digest in enumerate(digests))


def _seed(group: int, layer: int, block: int) -> int:
    return group << 56 | layer << 32 | block
