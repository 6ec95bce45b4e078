"""Names KV blocks by content, the same in every process and on every machine.

A block's key is SHA-256 over its parent's key and its own token ids as little-endian u32; a chain begins with a key of
the salt (whose KV this is) and of the adapter (whose weights computed it). So a key stands for all tokens up to the end
of its block, and equal text of two tenants, or of two adapters, has different keys. Keys are names, not proof: who
finds a block by its key compares the token ids.
"""

import hashlib
import struct
from collections.abc import Sequence

TOKEN_BYTES = 4
SHORT_KEY_BYTES = 8
"""Leading bytes of a key by which gateways are told of a block."""


def root_key(salt: str, adapter: str = "") -> bytes:
    """Returns the key that the chains of one tenant begin with, under one adapter's digest or none; 32 bytes."""
    parts = (part.encode() for part in (salt, adapter))
    return hashlib.sha256(b"".join(len(part).to_bytes(4, "little") + part for part in parts)).digest()


def block_key(parent: bytes, tokens: bytes) -> bytes:
    """Returns the key of a block behind `parent` with these packed token ids, 32 bytes."""
    return hashlib.sha256(parent + tokens).digest()


def pack(tokens: Sequence[int]) -> bytes:
    """Packs token ids as little-endian u32. Raises `struct.error` for one that is none."""
    return struct.pack(f"<{len(tokens)}I", *tokens)


class BlockKeys:
    """Holds the keys of the full blocks of one list of tokens that only grows, each computed once."""

    __slots__ = ("block_tokens", "keys", "packed", "root")

    def __init__(self, salt: str, block_tokens: int, adapter: str = "") -> None:
        self.root = root_key(salt, adapter)
        self.block_tokens = block_tokens
        self.keys: list[bytes] = []
        self.packed: list[bytes] = []  # token ids of each block

    def cover(self, tokens: Sequence[int], count: int) -> None:
        """Computes the keys that are missing of the full blocks of the first `count` of `tokens`."""
        size = self.block_tokens
        parent = self.keys[-1] if self.keys else self.root
        for start in range(len(self.keys) * size, count - size + 1, size):
            block = pack(tokens[start : start + size])
            parent = block_key(parent, block)
            self.keys.append(parent)
            self.packed.append(block)

    def copy(self) -> "BlockKeys":
        """Returns the keys for a list that is the same so far, and goes on otherwise."""
        copied = BlockKeys.__new__(BlockKeys)
        copied.root, copied.block_tokens = self.root, self.block_tokens
        copied.keys, copied.packed = list(self.keys), list(self.packed)
        return copied
