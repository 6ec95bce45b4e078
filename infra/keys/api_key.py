"""Makes API keys, and checks them: `baton-ID-SECRET`, of which a file has the ID and a salted hash of the whole.

The hash is one HMAC-SHA256 (RFC 2104) under a random salt. Slow hashes (scrypt, Argon2) protect what people make up,
which can be guessed; a secret of 256 random bits cannot be, however fast it is tried. And whoever sends wrong keys
would make a gateway spend the milliseconds of a slow hash on each. The salt keeps two files from telling that they have
one key.
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
MAX_RATE = 1_000_000_000  # requests or tokens that a limit can be

Name = Annotated[str, Meta(pattern=f"^{NAME_REGEX}$")]
Hex = Annotated[str, Meta(pattern=r"^([0-9a-f]{2})+$", max_length=64)]
Rate = Annotated[int, Meta(ge=0, le=MAX_RATE)]


class KeyOptions(Struct, frozen=True, kw_only=True):
    """Says whose a key is, and what it may do."""

    tenant: Annotated[
        str,
        Meta(
            pattern=f"^({NAME_REGEX})?$",
            description="whom it belongs to: keys of one tenant share cached KV and stored responses, those of two "
            "never do (up to 64 letters, digits, dots, dashes and underscores); empty: the key's name",
        ),
    ] = ""
    operator: Annotated[
        bool, Meta(description="it may also read /metrics, /stats and the dashboard, and load adapters")
    ] = False
    requests_per_minute: Annotated[Rate, Meta(description="requests within any minute, over all gateways; 0: any")] = 0
    tokens_per_minute: Annotated[
        Rate, Meta(description="tokens of prompts and answers within any minute, over all gateways; 0: any")
    ] = 0
    concurrency: Annotated[Rate, Meta(description="requests in progress at once, over all gateways; 0: any")] = 0
    priority: Annotated[
        int,
        Meta(
            ge=-(1 << 31),
            le=(1 << 31) - 1,
            description="lowest `priority` that its requests may ask for; the lower, the later one gives way. Those "
            "that ask for none have 0, or this if it is higher",
        ),
    ] = 0
    weight: Annotated[
        float, Meta(gt=0, le=1e6, description="its tenant's share where several wait, beside those of others")
    ] = 1.0
    slo: Annotated[
        str, Meta(description="objective of its requests, such as ttft=2s,tpot=100ms; empty: the gateway's --slo")
    ] = ""


class KeyRecord(KeyOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Is a key as a file has it: nobody who reads it can make the key of it."""

    id: Annotated[str, Meta(pattern="^[0-9a-f]{12}$")]
    name: Name
    salt: Hex
    hash: Hex
    created_at: int  # s since 1970

    @property
    def owner(self) -> str:
        """Names its tenant."""
        return self.tenant or self.name


class NewKey(NamedTuple):
    """Is a key that was just made: the only time that its text is known."""

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
    """Returns the public part of a key; empty for what is no key."""
    match = KEY_PATTERN.fullmatch(text)
    return match[1] if match else ""


def hashed(text: str, salt: str) -> str:
    """Returns the hash of a key under a salt; both hashes and salts are in hexadecimal digits."""
    return hmac.digest(bytes.fromhex(salt), text.encode(), "sha256").hex()


def fits(text: str, record: KeyRecord) -> bool:
    """Tells whether a key is the one of a record, in a time that does not depend on how much of it is right."""
    return hmac.compare_digest(hashed(text, record.salt).encode(), record.hash.encode())
