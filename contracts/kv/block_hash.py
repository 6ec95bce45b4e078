"""Content-based keys of KV blocks, equal in every process and on every machine.

A block's key is SHA-256 over its parent's key and its token ids as little-endian u32. A chain begins with a key of the
tenant's salt and the adapter, so a key stands for all tokens up to the end of its block, and equal texts of two tenants
or adapters have different keys. A key is no proof: compare the token ids of a block found by its key.
"""

import hashlib
import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache

TOKEN_BYTES = 4
SHORT_KEY_BYTES = 8  # leading bytes of a key in messages to gateways
MAX_ROOTS_REMEMBERED = 1024


@lru_cache(MAX_ROOTS_REMEMBERED)
def root_key(salt: str, adapter: str = "") -> bytes:
    """Returns the first key of a tenant's chains, under one adapter's digest or none; 32 bytes."""
    parts = (part.encode() for part in (salt, adapter))
    return hashlib.sha256(b"".join(len(part).to_bytes(4, "little") + part for part in parts)).digest()


def block_key(parent: bytes, tokens: bytes) -> bytes:
    """Returns the key of a block after `parent` with these packed token ids; 32 bytes."""
    return hashlib.sha256(parent + tokens).digest()


def pack(tokens: Sequence[int]) -> bytes:
    """Packs token ids as little-endian u32. Raises `OverflowError` for an id out of range."""
    if isinstance(tokens, array) and tokens.typecode == "I" and sys.byteorder == "little":
        return tokens.tobytes()
    packed = array("I", tokens)  # half the time of `struct.pack`
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


class BlockKeys:
    """Keys of the full blocks of a growing list of tokens, each computed once."""

    __slots__ = ("block_tokens", "keys", "packed", "root")

    def __init__(self, salt: str, block_tokens: int, adapter: str = "") -> None:
        self.root = root_key(salt, adapter)
        self.block_tokens = block_tokens
        self.keys: list[bytes] = []
        self.packed: list[bytes] = []  # packed token ids of each block

    def cover(self, tokens: Sequence[int], count: int) -> None:
        """Computes the missing keys of the full blocks of the first `count` tokens."""
        size = self.block_tokens
        parent = self.keys[-1] if self.keys else self.root
        first = len(self.keys) * size
        if count - first < size:
            return
        packed, block_bytes = pack(tokens[first:count]), TOKEN_BYTES * size
        for start in range(0, len(packed) - block_bytes + 1, block_bytes):
            block = packed[start : start + block_bytes]
            parent = block_key(parent, block)
            self.keys.append(parent)
            self.packed.append(block)

    @classmethod
    def behind(cls, key: bytes, block_tokens: int) -> "BlockKeys":
        """Returns keys, none yet, of tokens that follow the block with this key."""
        made = cls.__new__(cls)
        made.root, made.block_tokens, made.keys, made.packed = key, block_tokens, [], []
        return made

    def copy(self) -> "BlockKeys":
        """Returns a copy, for a list that continues differently."""
        copied = BlockKeys.behind(self.root, self.block_tokens)
        copied.keys, copied.packed = list(self.keys), list(self.packed)
        return copied
