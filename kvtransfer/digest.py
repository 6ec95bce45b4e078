"""Computes digests of payloads: XXH3 (64 bits) of their bytes, seeded with their place, and the sum over a handoff.

A handoff's digest is the sum modulo 2**64 over its payloads, so it does not depend on the order in which layers leave;
the seed is the place, so two swapped payloads change it. It guards against mistakes, not against an enemy: where there
may be one, payloads are sealed, and the seal's own tag takes the digest's place (`kvtransfer.transports.seal`).
"""

from collections.abc import Sequence

import xxhash

DIGEST_MODULUS = 1 << 64
PayloadPlace = tuple[int, int, int]
"""(group, layer, first block of the sequence)."""


def begin_digest(group: int, layer: int, first: int) -> xxhash.xxh3_64:
    """Begins the digest of a payload whose first block is block `first` of the sequence."""
    return xxhash.xxh3_64(seed=group << 56 | layer << 32 | first)


def payload_digest(group: int, layer: int, first: int, frames: Sequence[memoryview | bytes]) -> int:
    """Computes the digest of a payload's bytes, however they are cut."""
    digest = begin_digest(group, layer, first)
    for frame in frames:
        digest.update(frame)
    return digest.intdigest()


class HandoffDigest:
    """Keeps the running sum; with `trace`, also each payload's own digest, for tests and for finding a wrong one."""

    def __init__(self, trace: bool = False) -> None:
        self.value = 0
        self.payloads: dict[PayloadPlace, int] | None = {} if trace else None

    def add(self, group: int, layer: int, first: int, digest: int) -> None:
        """Adds a payload's digest."""
        self.value = (self.value + digest) % DIGEST_MODULUS
        if self.payloads is not None:
            self.payloads[group, layer, first] = digest
