"""Stores sealed bodies of tenants in Redis, for a limited time and within bounds, for all processes of a deployment.

Each body has its own key, which expires. Keys are keyed hashes, so that readers of Redis learn neither the tenant nor
the client's name of a body, and a tenant cannot find another tenant's.

Sorted sets by expiry, one per tenant and one of all bodies, bound the sizes: they have one member for each *piece* (4
KiB) of a body, so their lengths are the sizes. After adding a body, the oldest are removed while a set is too long.
Removing a body twice is harmless, so no counter can go wrong. Concurrent additions may exceed the bounds for a moment.
"""

import hmac
import logging
from collections.abc import Iterable
from typing import Any

from contracts.errors import SealError
from infra.network.sealing import Sealer, derive_key
from infra.redis.clients import Store
from infra.redis.store import KEY_PREFIX, answered

BODY_PURPOSE = "stored bodies"
NAME_PURPOSE = "names of stored bodies"
ALL_KEY = f"{KEY_PREFIX}{{stored}}"
PIECE_BYTES = 4096  # that a member of a sorted set stands for
MAX_BODY_BYTES = 1 << 20  # of one body; sealing it takes half a millisecond
TENANT_DIVISOR = 4  # a tenant may use 1/4 of everything, a body 1/4 of a tenant's share
log = logging.getLogger("baton.stored")


class TenantStore:
    """Bodies by tenant and id. Methods raise `StoreUnavailable` if Redis is away."""

    def __init__(self, store: Store, secret: bytes, seconds: float, most: int) -> None:
        """Keeps a body for `seconds`, and `most` bytes in all; nothing if either is 0."""
        self._store = store
        self._sealer = Sealer(secret, BODY_PURPOSE)
        self._key = derive_key(secret, NAME_PURPOSE)
        self._ttl_ms = round(seconds * 1000)
        self._pieces = most // PIECE_BYTES
        self.largest = min(MAX_BODY_BYTES, most // TENANT_DIVISOR**2)  # of one sealed body

    @property
    def keeps(self) -> bool:
        return self._ttl_ms > 0 and self._pieces > 0

    async def put(self, tenant: str, name: str, body: bytes, now: float) -> bool:
        """Stores a body; `now`: server time, s. Returns False if nothing is stored, or nothing of this size."""
        whose, key = self._keys(tenant, name)
        sealed = self._sealer.seal(body, key)
        if not self.keeps or len(sealed) > self.largest:
            return False
        pieces = -(-len(sealed) // PIECE_BYTES)
        expiry = now * 1000 + self._ttl_ms
        async with answered(), self._store.pipeline(transaction=True) as pipe:
            pipe.set(key, sealed, px=self._ttl_ms)
            for index in (whose, ALL_KEY):
                pipe.zremrangebyscore(index, "-inf", now * 1000)  # their keys have expired
                pipe.zadd(index, dict.fromkeys(_members(key, pieces), expiry))
                pipe.pexpire(index, self._ttl_ms)
                pipe.zcard(index)
            counts = await pipe.execute()
        await self._trim(whose, counts[4] - self._pieces // TENANT_DIVISOR)
        await self._trim(ALL_KEY, counts[8] - self._pieces)
        return True

    async def get(self, tenant: str, name: str) -> bytes | None:
        _, key = self._keys(tenant, name)
        async with answered():
            sealed: Any = await self._store.get(key)
        if sealed is None:
            return None
        try:
            return self._sealer.open(sealed, key)
        except SealError as error:
            log.warning("a stored body is taken for missing: %s", error)
            return None

    async def delete(self, tenant: str, name: str) -> bool:
        """Removes a tenant's body. Returns False if there was none."""
        _, key = self._keys(tenant, name)
        async with answered():
            size: int = await self._store.strlen(key)
        if size:
            await self._remove([(key, -(-size // PIECE_BYTES))])
        return size > 0

    async def _trim(self, index: str, pieces: int) -> None:
        if pieces <= 0:
            return
        async with answered():
            oldest: list[bytes] = await self._store.zrange(index, 0, pieces - 1)  # type: ignore[assignment]
        bodies = {member.decode().rpartition(":")[0].rpartition(":") for member in oldest}
        await self._remove((key, int(count)) for key, _, count in bodies)

    async def _remove(self, bodies: Iterable[tuple[str, int]]) -> None:
        """Removes bodies, given by key and number of pieces, with their index members."""
        async with answered(), self._store.pipeline(transaction=True) as pipe:
            for key, pieces in bodies:
                pipe.delete(key)
                for index in (key.rpartition(":")[0], ALL_KEY):
                    pipe.zrem(index, *_members(key, pieces))
            await pipe.execute()

    def _keys(self, tenant: str, name: str) -> tuple[str, str]:
        """Returns the keys of a tenant's sorted set and of a body."""
        whose = f"{ALL_KEY}:{self._hash(tenant)}"
        return whose, f"{whose}:{self._hash(tenant, name)}"

    def _hash(self, *parts: str) -> str:
        named = b"".join(b"%d:%s" % (len(part.encode()), part.encode()) for part in parts)
        return hmac.digest(self._key, named, "sha256").hex()[:32]


def _members(key: str, pieces: int) -> list[str]:
    """Returns a body's members of a sorted set. Each names their number, so one member is enough to remove all."""
    return [f"{key}:{pieces}:{number}" for number in range(pieces)]
