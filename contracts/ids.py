"""Identities in messages: epochs, request ids, samples, attempts, tickets.

An epoch is one life of a process: a worker that restarts at the same address has another epoch. Request ids contain the
epoch of their gateway, so two gateways never make the same id.
"""

import itertools
import secrets
from collections.abc import Iterator
from typing import Annotated, NamedTuple

from msgspec import Meta

Name = Annotated[str, Meta(max_length=128)]  # an epoch, a request id or a reason, bounded because peers choose it

Count = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]


class SampleKey(NamedTuple):
    """One sample of one request, which has one owner and one end."""

    request: Name
    sample: Count


class AttemptKey(NamedTuple):
    """One attempt at one sample. The highest attempt at a sample lives."""

    request: Name
    sample: Count
    attempt: Count

    @property
    def of(self) -> SampleKey:
        return SampleKey(self.request, self.sample)


class Ticket(NamedTuple):
    """The position of a job stream's entry. Lower tickets are taken first."""

    milliseconds: int  # Redis server time of the addition
    number: int  # among entries of the same millisecond

    @staticmethod
    def of(entry: bytes | str) -> "Ticket":
        """Parses an entry id of Redis, such as `1700000000000-0`."""
        text = entry if isinstance(entry, str) else entry.decode()
        milliseconds, _, number = text.partition("-")
        return Ticket(int(milliseconds), int(number))


NO_TICKET = Ticket(0, 0)  # lower than every entry's

LAST_TICKET = Ticket((1 << 63) - 1, 0)  # higher than every entry's


def new_epoch() -> str:
    """Returns a new epoch: 64 random bits as 16 hexadecimal digits."""
    return secrets.token_hex(8)


def request_ids(epoch: str) -> Iterator[str]:
    """Yields the request ids of one gateway life: the epoch, a dash and 64 random bits.

    A counter would tell each tenant how many requests other tenants send.
    """
    return (f"{epoch}-{secrets.token_hex(8)}" for _ in itertools.repeat(None))
