"""Makes the Secrets (shared secret, Redis password, API keys, certificates) and the ConfigMap (environment)."""

import hashlib
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from infra.keys.api_key import KeyOptions, make_key
from infra.keys.key_file import KeyFile
from infra.network.sealing import derive_key, load_secret, new_secret
from launcher.containers.yaml_text import Value
from launcher.kubernetes.names import metadata, name_of
from launcher.kubernetes.options import ManifestsConfig
from launcher.kubernetes.place import OPERATOR_KEYS_FILE, environment


class Secrets(Struct, frozen=True):
    """The contents of each Secret: file name → text."""

    shared: dict[str, str]  # for gateways and workers; empty: the Secret exists already
    keys: dict[str, str]  # hashed API keys of clients; empty: clients need no key
    operator_key: dict[str, str]  # operator key with which the dashboard and Prometheus ask the gateways
    tls: dict[str, str]


def read_secrets(config: ManifestsConfig) -> Secrets:
    """Reads the secrets that the options name, and generates the others. Raises `ConfigError`."""
    shared: dict[str, str] = {}
    if not config.existing_secret:
        secret = load_secret(config.secret_file) if config.secret_file else new_secret().encode()
        # Derived from the secret: manifests that are written again keep the password of the running Redis.
        password = derive_key(secret, "Redis password").hex()
        url = config.redis or f"redis://:{password}@{name_of(config, 'redis')}:6379"
        shared = {"secret": secret.decode(), "redis-url": url}
        if not config.redis:
            shared["redis-password"] = password
    keys = {f"{number}.json": Path(path).read_text() for number, path in enumerate(config.api_keys)}
    operator_key: dict[str, str] = {}
    if keys:
        made = make_key("this-deployment", KeyOptions(tenant="baton", operator=True), time.time())
        keys[OPERATOR_KEYS_FILE] = msgspec.json.encode(KeyFile([made.record])).decode()
        operator_key["api-key"] = made.text
    tls: dict[str, str] = {}
    if config.tls_cert:
        tls = {"tls.crt": Path(config.tls_cert).read_text(), "tls.key": Path(config.tls_key).read_text()}
    return Secrets(shared, keys, operator_key, tls)


def secret_name(config: ManifestsConfig) -> str:
    return config.existing_secret or name_of(config, "secret")


def secret_objects(config: ManifestsConfig, contents: Secrets) -> list[Value]:
    parts = (
        ("secret", "Opaque", contents.shared),
        ("keys", "Opaque", contents.keys),
        ("own-key", "Opaque", contents.operator_key),
    )
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata(config, part), "type": kind, "stringData": files}
        for part, kind, files in (*parts, ("tls", "kubernetes.io/tls", contents.tls))
        if files
    ]


def config_map(config: ManifestsConfig) -> Value:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(config, "settings"),
        "data": environment(config),
    }


def digest(config: ManifestsConfig) -> str:
    """Returns a digest of the ConfigMap: as a pod annotation it makes Kubernetes replace pods with older settings."""
    return hashlib.sha256(msgspec.json.encode(environment(config))).hexdigest()[:16]
