"""Derives keys from the deployment's secret, seals bodies, and signs public records.

HKDF-SHA256 (RFC 5869) derives one key per purpose. AES-256-GCM (NIST SP 800-38D) seals, with a random 96-bit nonce in
front of the ciphertext. The place of a body is associated data, so a body cannot be moved. Public bodies are signed
with HMAC-SHA256 (RFC 2104), bound to their place in the same way.
"""

import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from contracts.errors import ConfigError, SealError

NONCE_BYTES = 12
MIN_SECRET_CHARS = 16


def derive_key(secret: bytes, purpose: str, salt: bytes = b"") -> bytes:
    """Derives a 32-byte key for one purpose; with a `salt` that is never reused, for one use of it."""
    return HKDF(algorithm=SHA256(), length=32, salt=b"baton" + salt, info=purpose.encode()).derive(secret)


class Sealer:
    """Seals and opens bodies of one purpose."""

    def __init__(self, secret: bytes, purpose: str) -> None:
        self._cipher = AESGCM(derive_key(secret, purpose))

    def seal(self, body: bytes, place: str) -> bytes:
        """Returns nonce and ciphertext of `body`, bound to `place`."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, body, place.encode())

    def open(self, sealed: bytes, place: str) -> bytes:
        """Returns the body. Raises `SealError` if it was altered, moved, or sealed with another secret."""
        try:
            return self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], place.encode())
        except (InvalidTag, ValueError):
            raise SealError(f"a body for {place} was not sealed with this deployment's secret") from None


class Signer:
    """Signs public bodies of one purpose, and checks signatures."""

    def __init__(self, secret: bytes, purpose: str) -> None:
        self._key = derive_key(secret, purpose)

    def sign(self, body: bytes, place: str) -> str:
        """Returns a body's signature at this place: 64 hexadecimal digits."""
        named = place.encode()
        return hmac.digest(self._key, len(named).to_bytes(4, "big") + named + body, "sha256").hex()

    def signed(self, body: bytes, place: str, signature: str) -> bool:
        return hmac.compare_digest(self.sign(body, place).encode(), signature.encode())


def new_secret() -> str:
    return secrets.token_hex(32)


def load_secret(path: str) -> bytes:
    """Reads the secret in `path`; for an empty path this user's own, made at first use with mode 0600.

    Raises `ConfigError` if it cannot be read or made, or is too short.
    """
    if path:
        try:
            secret = Path(path).read_bytes().strip()
        except OSError as error:
            raise ConfigError("--secret-file", path, error.strerror or "cannot be read") from None
        if len(secret) < MIN_SECRET_CHARS:
            raise ConfigError("--secret-file", path, f"a secret has at least {MIN_SECRET_CHARS} characters")
        return secret
    own = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "baton" / "secret"
    try:
        own.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not own.exists():
            _make(own)
    except OSError as error:
        why = f"no secret can be made: {error.strerror}; XDG_STATE_HOME names another place, --secret-file a secret"
        raise ConfigError("--secret-file", str(own), why) from None
    return load_secret(str(own))


def _make(own: Path) -> None:
    """Writes the secret to a part file, then links it, so that a full disk leaves no partial secret."""
    part = own.with_name(f".{own.name}.{os.getpid()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(new_secret())
        with suppress(FileExistsError):  # another process was first
            os.link(part, own)
    finally:
        part.unlink(missing_ok=True)
