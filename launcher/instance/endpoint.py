"""Finds the endpoint that a command talks to: a named URL, or this user's running instance with its own key."""

import os
import sys
from typing import NamedTuple

from infra.completions_client import MAX_SILENCE_S, CompletionsClient
from infra.keys.key_file import read_key
from launcher.instance.instances import Instance, running


class ClientEndpoint(NamedTuple):
    """A URL, the API key that it needs or '', and the file of the certificate to trust or ''."""

    url: str
    key: str
    cert: str

    def client(self, silence: float = MAX_SILENCE_S) -> CompletionsClient:
        """Makes a client that waits `silence` seconds for a byte. Raises `GatewayError` for an unusable URL."""
        return CompletionsClient(self.url, silence=silence, key=self.key, cert=self.cert)


def endpoint_of(url: str, instance: Instance | None, api_key_file: str, cert: str) -> ClientEndpoint:
    """Joins the options with what is known of a running `instance`. Raises `ConfigError` for an unusable key file."""
    key = read_key(api_key_file) or os.environ.get("BATON_API_KEY", "")
    if instance is not None:
        key, cert = key or read_key(instance.key_file), cert or instance.cert
    return ClientEndpoint(url, key, cert)


def running_instance() -> Instance | None:
    """Returns this user's instance, the newest of several, and names the others on standard error."""
    found = running()
    if len(found) > 1:
        others = ", ".join(instance.url for instance in found[1:])
        print(f"also running: {others} (--url chooses)", file=sys.stderr)
    return found[0] if found else None
