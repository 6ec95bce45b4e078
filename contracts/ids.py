"""Defines the identities that every message carries, and makes them.

An epoch is one life of a process: a worker that comes back on the same address has another. Request ids contain the
epoch of the gateway that owns the request, so that two gateways can never make the same one.
"""

import itertools
import secrets
from collections.abc import Iterator
from typing import Annotated, NamedTuple

from msgspec import Meta

Name = Annotated[str, Meta(max_length=128)]
"""The text of an epoch, a request id or a reason, in 128 characters at most: what is kept of a peer is bounded."""

Count = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]


class SampleKey(NamedTuple):
    """Names one sample of one request: the unit of ownership and of ends."""

    request: Name
    sample: Count


class AttemptKey(NamedTuple):
    """Names one attempt at one sample. Of two attempts at a sample the higher one lives."""

    request: Name
    sample: Count
    attempt: Count

    @property
    def of(self) -> SampleKey:
        """Returns the key of the sample that is attempted."""
        return SampleKey(self.request, self.sample)


class Ticket(NamedTuple):
    """Names an entry of a job stream: its worker takes the lower of two first."""

    milliseconds: int  # of the Redis server's clock, when it was added
    number: int  # among those of the same millisecond

    @staticmethod
    def of(entry: bytes | str) -> "Ticket":
        """Reads the id that Redis gives an entry, such as `1700000000000-0`."""
        text = entry if isinstance(entry, str) else entry.decode()
        milliseconds, _, number = text.partition("-")
        return Ticket(int(milliseconds), int(number))


NO_TICKET = Ticket(0, 0)
"""Lower than every entry's."""

LAST_TICKET = Ticket((1 << 63) - 1, 0)
"""Higher than every entry's."""


def new_epoch() -> str:
    """Makes a fresh epoch: 64 random bits as 16 hexadecimal digits."""
    return secrets.token_hex(8)


def request_ids(epoch: str) -> Iterator[str]:
    """Makes the request ids of one gateway life: the epoch, a dash and 64 random bits.

    A counter would tell each tenant how many requests other tenants send.
    """
    return (f"{epoch}-{secrets.token_hex(8)}" for _ in itertools.repeat(None))
