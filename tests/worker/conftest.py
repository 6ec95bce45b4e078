"""A real Valkey server for the tests of what is taken from it."""

from tests.core.conftest import clean_redis, redis_url

__all__ = ["clean_redis", "redis_url"]
