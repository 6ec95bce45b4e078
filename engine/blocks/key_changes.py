"""Collects the keys of full blocks that entered or left the cache, for the gateways' routing.

Keys are shortened to eight bytes: two texts with the same key can only mislead a route, which costs time.
"""

from typing import NamedTuple

from contracts.kv.block_hash import SHORT_KEY_BYTES


class Changed(NamedTuple):
    """Concatenated short keys: of blocks that entered the cache, and of blocks that left. No key is in both."""

    kept: bytes
    lost: bytes


class KeyChanges:
    """Collects the last change of each key until the changes are taken."""

    def __init__(self) -> None:
        self._changed: dict[bytes, bool] = {}  # short key → whether it is in the cache now

    def kept(self, key: bytes) -> None:
        self._changed[key[:SHORT_KEY_BYTES]] = True

    def lost(self, key: bytes) -> None:
        self._changed[key[:SHORT_KEY_BYTES]] = False

    def take(self) -> Changed | None:
        """Returns the changes since the last call; None: none."""
        if not self._changed:
            return None
        changed, self._changed = self._changed, {}
        return Changed(
            b"".join([key for key, known in changed.items() if known]),
            b"".join([key for key, known in changed.items() if not known]),
        )
