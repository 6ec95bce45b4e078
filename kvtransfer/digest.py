"""Digests of payloads: XXH3 (64 bits) seeded with their place, and their sum over a handoff.

A handoff's digest is the sum modulo 2**64, so it does not depend on the order in which layers are sent; the seed makes
it change if two payloads are swapped. It guards against mistakes, not attackers: against these, payloads are sealed,
and the seal's tag replaces the digest (`kvtransfer.transports.sockets.seal`).
"""

from collections.abc import Sequence

import xxhash

from contracts.messages.handoff import Layer
from infra.memory.unlocked_copy import copy_bytes

COPY_BYTES = 512 << 10  # copied and digested at a time: they stay in a cache in between
DIGEST_MODULUS = 1 << 64
PayloadPlace = tuple[int, int, int]  # (group, layer, first block of the sequence)


def begin_digest(group: int, layer: int, first: int) -> xxhash.xxh3_64:
    """Starts the digest of a payload that begins with block `first` of the sequence."""
    return xxhash.xxh3_64(seed=group << 56 | layer << 32 | first)


def payload_digest(group: int, layer: int, first: int, frames: Sequence[memoryview | bytes]) -> int:
    """Returns the digest of a payload, however it is split into frames."""
    digest = begin_digest(group, layer, first)
    for frame in frames:
        digest.update(frame)
    return digest.intdigest()


def copy_and_digest(header: Layer, views: Sequence[memoryview], targets: Sequence[memoryview]) -> int:
    """Copies a payload's bytes into memory of the same size, however both are split, and returns its digest."""
    digest, waiting, target = begin_digest(header.group, header.layer, header.first), iter(targets), memoryview(b"")
    for view in views:
        at = 0
        while at < len(view):
            target = target or next(waiting)
            piece = view[at : at + min(COPY_BYTES, len(target))]
            copy_bytes(target[: len(piece)], piece)
            digest.update(piece)
            target, at = target[len(piece) :], at + len(piece)
    return digest.intdigest()


class HandoffDigest:
    """The running sum; with `trace` also each payload's digest, to find a wrong one in tests."""

    def __init__(self, trace: bool = False) -> None:
        self.value = 0
        self.payloads: dict[PayloadPlace, int] | None = {} if trace else None

    def add(self, group: int, layer: int, first: int, digest: int) -> None:
        self.value = (self.value + digest) % DIGEST_MODULUS
        if self.payloads is not None:
            self.payloads[group, layer, first] = digest
