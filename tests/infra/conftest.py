"""A real Valkey server for the tests of what is kept in it."""

import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis

from infra.redis.clients import Store, connect, connect_blocking
from launcher.host.redis_server import redis_service
from tests.waiting import DEADLINE_S, wait_until


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory: Path = tmp_path_factory.mktemp("redis")
    service, url = redis_service(directory)
    process = subprocess.Popen(service.command, stdout=subprocess.DEVNULL)

    def answers() -> bool:
        try:
            with connect_blocking(url) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    try:
        wait_until(answers, "Redis")
        yield url
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


@pytest.fixture
def clean_redis(redis_url: str) -> str:
    with connect_blocking(redis_url) as client:
        client.flushall()
    return redis_url


@pytest.fixture
async def store(clean_redis: str) -> AsyncIterator[Store]:
    store = connect(clean_redis)
    yield store
    await store.aclose()
