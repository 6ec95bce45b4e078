"""Checks that all services on a Redis server have the deployment's secret: others could not read their records."""

import asyncio

from contracts.errors import ConfigError
from infra.network.sealing import Signer, load_secret, new_secret
from infra.redis.clients import connect, redacted
from infra.redis.records import GatewayRecord, WorkerRecord
from infra.redis.registry import RECORD_PURPOSE, listed
from launcher.counted_noun import counted_noun


def check_secret(url: str, secret_file: str) -> None:
    """Raises `ConfigError` if services at `url` have another secret; `secret_file` '': a new secret."""
    asyncio.run(_check(url, secret_file))


async def _check(url: str, secret_file: str) -> None:
    secret = load_secret(secret_file) if secret_file else new_secret().encode()
    signer = Signer(secret, RECORD_PURPOSE)
    strangers: list[str] = []
    store = connect(url)
    try:
        await listed(store, signer, WorkerRecord, strangers.append)
        workers = len(strangers)
        await listed(store, signer, GatewayRecord, strangers.append)
    finally:
        await store.aclose()
    if strangers:
        who = f"{counted_noun(workers, 'worker')} and {counted_noun(len(strangers) - workers, 'gateway')}"
        raise ConfigError(
            "--secret-file",
            secret_file,
            f"{who} at --redis {redacted(url)} have another secret; all services of a deployment have the same, and"
            " another deployment needs a server, or a database, of its own",
        )
