"""Keeps in Redis, for each model, a signed list of the adapters that clients have loaded at run time.

Workers follow it: they load new adapters and unload removed ones. Like a registry record, a list is signed for its key
and its number, which grows with every change, so it cannot be forged, moved, or replaced by an earlier list. It expires
a day after it was last read. Functions here raise `StoreUnavailable` if Redis is away.
"""

from collections.abc import Callable

import msgspec
import redis
from msgspec import Struct

from contracts.adapters import AdapterSource
from contracts.errors import StoreUnavailable
from infra.network.sealing import Signer
from infra.redis.clients import Store
from infra.redis.registry import Published
from infra.redis.store import KEY_PREFIX, answered

LIST_TTL_MS = 24 * 3600 * 1000  # after the last read
MAX_ADAPTERS = 1024  # of a list
MAX_TRIES = 16  # concurrent changes by others before giving up
ADAPTER_LIST_PURPOSE = "adapter lists"


class AdapterList(Struct, frozen=True):
    """Adapters that the workers of a model should have in addition to their own."""

    number: int = 0  # grows with each change; 0: there is no list
    adapters: tuple[AdapterSource, ...] = ()


def list_key(model: str) -> str:
    """Returns the key of a model's list: its name without the directories."""
    return f"{KEY_PREFIX}adapters:{model.rstrip('/').rpartition('/')[2]}"


@answered()
async def read(store: Store, signer: Signer, model: str) -> AdapterList:
    """Returns the list; an empty list of number 0 if there is no list signed with the deployment's secret."""
    key = list_key(model)
    return _opened(await store.getex(key, px=LIST_TTL_MS), signer, key)


@answered()
async def change(
    store: Store,
    signer: Signer,
    model: str,
    now: float,
    changed: Callable[[tuple[AdapterSource, ...]], tuple[AdapterSource, ...]],
) -> AdapterList:
    """Replaces the adapters by `changed(adapters)`, and returns the new list. `now`: server time, s.

    If `changed` raises, the list stays as it is.
    """
    key = list_key(model)
    async with store.pipeline(transaction=True) as pipe:
        for _ in range(MAX_TRIES):
            try:
                await pipe.watch(key)
                old = _opened(await pipe.get(key), signer, key)
                adapters = changed(old.adapters)
                number = max(old.number + 1, int(now * 1e6))  # above every earlier number, even if Redis lost them
                body = msgspec.json.encode(AdapterList(number, adapters))
                published = Published(msgspec.Raw(body), number, signer.sign(body, _place(key, number)))
                pipe.multi()  # type: ignore[no-untyped-call]
                pipe.set(key, msgspec.json.encode(published), px=LIST_TTL_MS)
                await pipe.execute()
                return AdapterList(number, adapters)
            except redis.WatchError:
                continue
    raise StoreUnavailable(f"the list of adapters was changed by others {MAX_TRIES} times in a row")


def _opened(body: bytes | str | None, signer: Signer, key: str) -> AdapterList:
    if body is None:
        return AdapterList()
    try:
        published = msgspec.json.decode(body, type=Published)
        if not signer.signed(bytes(published.record), _place(key, published.beat), published.signature):
            return AdapterList()
        return msgspec.json.decode(published.record, type=AdapterList)
    except msgspec.DecodeError:  # of another version
        return AdapterList()


def _place(key: str, number: int) -> str:
    return f"{key} {number}"
