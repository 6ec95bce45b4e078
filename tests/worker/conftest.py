"""A real Valkey server for tests that read from it, and engines that start as those of the engine's tests."""

from collections.abc import AsyncIterator

import pytest

from infra.redis.clients import Store, connect
from tests.engine.conftest import one_thread
from tests.infra.conftest import clean_redis, redis_url

__all__ = ["clean_redis", "one_thread", "redis_url"]


@pytest.fixture
async def store(clean_redis: str) -> AsyncIterator[Store]:
    """Asks the server, which is empty before."""
    store = connect(clean_redis)
    yield store
    await store.aclose()
