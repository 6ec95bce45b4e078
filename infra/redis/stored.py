"""Keeps bodies for tenants in Redis, sealed, for a while and within bounds, so that any process of ours finds them.

A body stands at a key of its own, which expires. Keys are made of hashes under a key from the secret, so that whoever
reads Redis learns neither whose a body is nor how a client calls it, and a tenant who asks for another's finds none.

What keeps the bounds are sorted sets by expiry, one of each tenant and one of all, with one member for each *piece*
(4 KiB) of a body: their lengths are the sizes. Whoever adds a body removes the oldest while there are too many. To
remove one twice does no harm, so nothing has to be counted, and nothing can be counted wrongly. What is added at the
same moment by others may be there beyond the bounds until they have removed as much.
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
PIECE_BYTES = 4096  # bytes that a member of a sorted set stands for
MAX_BODY_BYTES = 1 << 20  # bytes of one body: what is sealed in half a millisecond
TENANT_DIVISOR = 4  # one tenant may keep this part of everything, and one body may be this part of a tenant's
log = logging.getLogger("baton.stored")


class TenantStore:
    """Keeps bodies by tenant and id. Whatever asks Redis raises `StoreUnavailable` where it is away."""

    def __init__(self, store: Store, secret: bytes, seconds: float, most: int) -> None:
        """Keeps a body for `seconds` at most, and `most` bytes of all tenants; where either is 0, nothing."""
        self._store = store
        self._sealer = Sealer(secret, BODY_PURPOSE)
        self._key = derive_key(secret, NAME_PURPOSE)
        self._ttl_ms = round(seconds * 1000)
        self._pieces = most // PIECE_BYTES
        self.largest = min(MAX_BODY_BYTES, most // TENANT_DIVISOR**2)  # bytes of one body, sealed

    @property
    def keeps(self) -> bool:
        """Tells whether it keeps anything."""
        return self._ttl_ms > 0 and self._pieces > 0

    async def put(self, tenant: str, name: str, body: bytes, now: float) -> bool:
        """Keeps a body; `now` is the server's time, s. Returns False if it keeps nothing, or nothing so large."""
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
        """Returns a tenant's body, or None if there is none, or no longer."""
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
        """Removes a tenant's body. Returns False if there is none."""
        _, key = self._keys(tenant, name)
        async with answered():
            size: int = await self._store.strlen(key)
        if size:
            await self._remove([(key, -(-size // PIECE_BYTES))])
        return size > 0

    async def _trim(self, index: str, pieces: int) -> None:
        """Removes so many pieces, if any, of the oldest bodies that an index lists."""
        if pieces <= 0:
            return
        async with answered():
            oldest: list[bytes] = await self._store.zrange(index, 0, pieces - 1)  # type: ignore[assignment]
        bodies = {member.decode().rpartition(":")[0].rpartition(":") for member in oldest}
        await self._remove((key, int(count)) for key, _, count in bodies)

    async def _remove(self, bodies: Iterable[tuple[str, int]]) -> None:
        """Removes bodies, given by key and number of pieces, with all that lists them."""
        async with answered(), self._store.pipeline(transaction=True) as pipe:
            for key, pieces in bodies:
                pipe.delete(key)
                for index in (key.rpartition(":")[0], ALL_KEY):
                    pipe.zrem(index, *_members(key, pieces))
            await pipe.execute()

    def _keys(self, tenant: str, name: str) -> tuple[str, str]:
        """Returns the key of a tenant's sorted set, and that of one body."""
        whose = f"{ALL_KEY}:{self._hash(tenant)}"
        return whose, f"{whose}:{self._hash(tenant, name)}"

    def _hash(self, *parts: str) -> str:
        named = b"".join(b"%d:%s" % (len(part.encode()), part.encode()) for part in parts)
        return hmac.digest(self._key, named, "sha256").hex()[:32]


def _members(key: str, pieces: int) -> list[str]:
    """Returns what stands for a body in a sorted set. Each names their number, so that one tells of all."""
    return [f"{key}:{pieces}:{number}" for number in range(pieces)]
