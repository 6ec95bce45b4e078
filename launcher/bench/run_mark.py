"""Tells a Baton when a load begins and ends, so that its dashboard's charts show the run."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from contracts.errors import GatewayError
from launcher.instance.endpoint import ClientEndpoint

PATH = "/load_runs"
MAX_WAIT_S = 2.0


@contextmanager
def marked(endpoint: ClientEndpoint, name: str) -> Iterator[None]:
    """Marks the time of the `with` block as a run, unless the server knows no marks or refuses this key."""
    client, run = endpoint.client(MAX_WAIT_S), secrets.token_hex(8)
    with suppress(GatewayError):
        client.post(PATH, {"run": run, "name": name})
    try:
        yield
    finally:
        with suppress(GatewayError):
            client.post(PATH, {"run": run, "name": name, "ended": True})
