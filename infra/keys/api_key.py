"""API keys, `baton-ID-SECRET`: made here, and checked against a file with their IDs and salted hashes.

A hash is one HMAC-SHA256 (RFC 2104) under a random salt. Slow hashes (scrypt, Argon2) protect passwords, which can be
guessed. A secret of 256 random bits cannot, and with a slow hash wrong keys would cost a gateway milliseconds each. The
salt hides that two files have the same key.
"""

import hmac
import re
import secrets
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

NAME_REGEX = "[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
NAME_PATTERN = re.compile(NAME_REGEX)
ID_BYTES, SECRET_BYTES, SALT_BYTES = 6, 32, 16
KEY_PATTERN = re.compile(r"baton-([0-9a-f]{12})-[0-9a-f]{64}")
MAX_RATE = 1_000_000_000  # highest limit of requests or tokens

Name = Annotated[str, Meta(pattern=f"^{NAME_REGEX}$")]
Hex = Annotated[str, Meta(pattern=r"^([0-9a-f]{2})+$", max_length=64)]
Rate = Annotated[int, Meta(ge=0, le=MAX_RATE)]


class KeyOptions(Struct, frozen=True, kw_only=True):
    """A key's tenant, permissions and limits."""

    tenant: Annotated[
        str,
        Meta(
            extra={"metavar": "NAME"},
            pattern=f"^({NAME_REGEX})?$",
            description="owner of the key: keys of one tenant share cached KV and stored responses, keys of different "
            "tenants never do (up to 64 letters, digits, dots, dashes and underscores); empty: the key's "
            "name",
        ),
    ] = ""
    operator: Annotated[bool, Meta(description="allow /metrics, /stats, the dashboard, and loading adapters")] = False
    requests_per_minute: Annotated[
        Rate, Meta(description="limit of requests within any minute, over all gateways; 0: none")
    ] = 0
    tokens_per_minute: Annotated[
        Rate, Meta(description="limit of prompt and answer tokens within any minute, over all gateways; 0: none")
    ] = 0
    concurrency: Annotated[Rate, Meta(description="limit of requests in progress, over all gateways; 0: none")] = 0
    priority: Annotated[
        int,
        Meta(
            ge=-(1 << 31),
            le=(1 << 31) - 1,
            description="lowest `priority` that its requests may set; requests with lower numbers are preempted later."
            " The default is 0, or this number if it is higher",
        ),
    ] = 0
    weight: Annotated[
        float, Meta(gt=0, le=1e6, description="weight of its tenant when several tenants share the workers")
    ] = 1.0
    slo: Annotated[
        str,
        Meta(
            extra={"metavar": "OBJECTIVE"},
            description="latency objective of its requests, such as ttft=2s,tpot=100ms; empty: the gateway's --slo",
        ),
    ] = ""


class KeyRecord(KeyOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key as stored in a file. The key itself cannot be derived from it."""

    id: Annotated[str, Meta(pattern="^[0-9a-f]{12}$")]
    name: Name
    salt: Hex
    hash: Hex
    created_at: int  # s since 1970

    @property
    def owner(self) -> str:
        return self.tenant or self.name


class NewKey(NamedTuple):
    """A key that was just made. Its text is not stored anywhere else."""

    text: str
    record: KeyRecord


def make_key(name: str, options: KeyOptions, now: float) -> NewKey:
    """Makes a key; `now` is in seconds since 1970."""
    id, salt = secrets.token_hex(ID_BYTES), secrets.token_hex(SALT_BYTES)
    text = f"baton-{id}-{secrets.token_hex(SECRET_BYTES)}"
    chosen = {field: getattr(options, field) for field in KeyOptions.__struct_fields__}
    record = KeyRecord(id=id, name=name, salt=salt, hash=hashed(text, salt), created_at=int(now), **chosen)
    return NewKey(text, record)


def id_of(text: str) -> str:
    match = KEY_PATTERN.fullmatch(text)
    return match[1] if match else ""


def hashed(text: str, salt: str) -> str:
    """Returns a key's hash under a salt, both in hexadecimal digits."""
    return hmac.digest(bytes.fromhex(salt), text.encode(), "sha256").hex()


def is_key_of(text: str, record: KeyRecord) -> bool:
    """Whether a key is the record's, checked in constant time."""
    return hmac.compare_digest(hashed(text, record.salt).encode(), record.hash.encode())
