"""Identities that every message carries, and how they are made.

An epoch is one life of a process: a worker that comes back on the same address has another. Request ids contain the
epoch of the gateway that owns the request, so that two gateways can never make the same one.
"""

import itertools
import secrets
from collections.abc import Iterator
from typing import NamedTuple


class SequenceKey(NamedTuple):
    """One sample of one request: the unit of ownership, of attempts and of ends."""

    request: str
    sample: int


def new_epoch() -> str:
    """A fresh epoch: 64 random bits as 16 hexadecimal digits."""
    return secrets.token_hex(8)


def request_ids(epoch: str) -> Iterator[str]:
    """Request ids of one gateway life, in order: the epoch, a dash and a counter."""
    return (f"{epoch}-{number:x}" for number in itertools.count(1))
