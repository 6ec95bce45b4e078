"""Computes the digest that replaces a long prompt in a job, with pauses for other tasks."""

import asyncio
import hashlib

from contracts.messages.job import Body
from contracts.messages.packed_ids import IDS_PER_PIECE, packed
from gateway.requests.sample import Sample


async def body_of(sample: Sample) -> Body:
    """Returns the number and digest of the tokens that a sample's next attempt begins with."""
    tokens, digest = sample.length, hashlib.sha256()
    for first in range(0, tokens, IDS_PER_PIECE):
        digest.update(packed(sample.ids(first, min(first + IDS_PER_PIECE, tokens))))
        await asyncio.sleep(0)
    return Body(tokens, digest.digest())
