"""Checks ports and the Redis server before a service starts."""

import asyncio

from contracts.errors import StoreUnavailable
from infra.network.listening import listen
from infra.redis.clients import connect, redacted
from infra.redis.store import check

REDIS_TIMEOUT_S = 5.0


def check_port(option: str, host: str, port: int) -> int:
    """Returns the port if it is free, or a free one for 0. Raises `ConfigError` that names the option."""
    with listen(host, port, option) as listener:
        free: int = listener.getsockname()[1]
        return free


def check_redis(url: str) -> None:
    """Checks the server at `url`. Raises `StoreUnavailable` or `ConfigError`, whose texts hide the password."""
    asyncio.run(_ask(url))


async def _ask(url: str) -> None:
    store = connect(url)
    try:
        async with asyncio.timeout(REDIS_TIMEOUT_S):
            await check(store, url)
    except TimeoutError:
        raise StoreUnavailable(f"--redis: {redacted(url)!r}: no answer within {REDIS_TIMEOUT_S:.0f} s") from None
    finally:
        await store.aclose()
