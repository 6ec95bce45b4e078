"""Describes where Redis is, and what is kept there."""

from typing import Annotated

from msgspec import Meta, Struct

from contracts.kinds import RedisURL


class StoreConfig(Struct, frozen=True, kw_only=True):
    """Says where queue state lives, and which secret seals it."""

    redis: RedisURL = "redis://127.0.0.1:6379"
    secret_file: Annotated[
        str, Meta(description="file with the deployment's secret, the same for every service; empty: this user's own")
    ] = ""
