"""A real Redis server, model directories, and gateways that serve on ports which the system chooses."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gateway.models import HERMES, byte_level
from tests.gateway.running import Running, Serve, empty, serving
from tests.infra.conftest import redis_url

__all__ = ["redis_url"]

SECRET = "a secret of the tests, long enough"


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with a byte-level tokenizer and 40 ids that the tokenizer does not know."""
    return byte_level(tmp_path_factory.mktemp("models") / "tiny", vocabulary=443)


@pytest.fixture(scope="session")
def calling_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory whose chat template knows tools and thinking."""
    directory = tmp_path_factory.mktemp("models") / "calling"
    return byte_level(directory, template=HERMES, max_position_embeddings=2048)


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(SECRET)
    return path


@pytest.fixture
async def serve(redis_url: str, model: Path, secret_file: Path) -> AsyncIterator[Serve]:
    """Starts gateways, and ends them after the test. Redis is empty before."""
    await empty(redis_url)
    async with serving(redis_url, model, secret_file) as start:
        yield start


@pytest.fixture
async def running(serve: Serve) -> Running:
    """A gateway with one prefill and one decode peer, ready."""
    return await serve("prefill", "decode")


@pytest.fixture
async def calling(serve: Serve, calling_model: Path) -> Running:
    """The same with a model that calls tools and thinks."""
    return await serve("prefill", "decode", at=calling_model)
