"""Seals payloads with AES-256-GCM (NIST SP 800-38D), with one key per session of a link.

    key   = HKDF-SHA256(secret; salt: both ends' nonces; info: both ends' epochs)
    frame = nonce, header, AES-GCM(key, nonce; associated data: header; payload)

Both salt halves pass over a CURVE socket, so recorded frames stay closed even if the secret leaks later. The nonce
counts the session's frames. The header names epochs, handoff, layer, blocks and number: frames that were altered,
moved, repeated, reordered, or made for another session are refused.
"""

from collections.abc import Sequence

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from contracts.errors import SealError
from infra.memory.unlocked_copy import joined
from infra.network.sealing import derive_key

NONCE_BYTES, TAG_BYTES = 12, 16  # of a frame's nonce, and of the tag behind its payload
MAX_KEPT_BUFFER_BYTES = 4 << 20  # largest buffer that the receiving end keeps for the next payload
SALT_HALF_BYTES = 32  # of one end's half of the salt


def session_key(secret: bytes, halves: tuple[bytes, bytes], epochs: tuple[str, str]) -> bytes:
    """Derives a session's key from both ends' salt halves and epochs, the prefill worker's first."""
    return derive_key(secret, f"kv frames, {epochs[0]} to {epochs[1]}", b"".join(halves))


def seal_digest(sealed: memoryview | bytes) -> int:
    """Returns a sealed payload's stand-in for a digest: 64 bits of its tag."""
    return int.from_bytes(sealed[-TAG_BYTES:][:8], "little")


class FrameSealer:
    """Seals a session's payloads at the sending end."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._next = 0

    def seal(self, header: bytes, views: Sequence[memoryview], buffer: memoryview) -> tuple[bytes, memoryview]:
        """Returns a fresh nonce, and the payload with its tag in `buffer`, which must be large enough.

        The memory of `views` may change afterwards.
        """
        nonce = self._next.to_bytes(NONCE_BYTES, "little")
        self._next += 1
        payload = joined(views)
        sealed = buffer[: len(payload) + TAG_BYTES]
        self._cipher.encrypt_into(nonce, payload, header, sealed)
        return nonce, sealed


class FrameOpener:
    """Opens a session's payloads at the receiving end."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._least = 0  # minimum of the next frame's nonce
        self._buffer = memoryview(bytearray())

    def open(self, nonce: bytes, header: bytes, sealed: memoryview) -> memoryview:
        """Opens a frame; the result is valid until the next call. Raises `SealError` for any other frame."""
        if len(nonce) != NONCE_BYTES or (count := int.from_bytes(nonce, "little")) < self._least:
            raise SealError("a frame of the past")
        if len(sealed) < TAG_BYTES:
            raise SealError("a frame without its tag")
        size = len(sealed) - TAG_BYTES
        if len(self._buffer) < size:
            self._buffer = np.empty(size, np.uint8).data  # not cleared first, unlike a bytearray
        payload = self._buffer[:size]
        if size > MAX_KEPT_BUFFER_BYTES:
            self._buffer = memoryview(bytearray())
        try:
            self._cipher.decrypt_into(nonce, sealed, header, payload)
        except InvalidTag:
            raise SealError("a frame that was not sealed for this session") from None
        self._least = count + 1
        return payload
