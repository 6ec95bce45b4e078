"""Settings of Redis and of the deployment's secret."""

from typing import Annotated

from msgspec import Meta, Struct

from contracts.kinds import FilePath, RedisURL


class StoreConfig(Struct, frozen=True, kw_only=True):
    """The URL of Redis, and the secret that seals the stored data."""

    redis: RedisURL = "redis://127.0.0.1:6379"
    secret_file: Annotated[
        FilePath,
        Meta(
            description="file with the deployment's secret, the same for every service; empty: this user's default "
            "secret"
        ),
    ] = ""
