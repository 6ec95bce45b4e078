"""Collects which full blocks' texts the cache has come to know, and which it has forgotten, for whoever routes by that.

Keys are shortened to eight bytes: two texts that share them cost whoever routes by them some time, and nothing else.
"""

from typing import NamedTuple

from contracts.kv.block_hash import SHORT_KEY_BYTES


class Changed(NamedTuple):
    """Holds short keys, joined: those that became known, and those that were forgotten. None is in both."""

    kept: bytes
    lost: bytes


class KeyChanges:
    """Collects changes until they are taken: of each key the last one."""

    def __init__(self) -> None:
        self._changed: dict[bytes, bool] = {}  # by short key: whether it is known now

    def kept(self, key: bytes) -> None:
        """Notes that a block with this key is known now."""
        self._changed[key[:SHORT_KEY_BYTES]] = True

    def lost(self, key: bytes) -> None:
        """Notes that no block with this key is known any more."""
        self._changed[key[:SHORT_KEY_BYTES]] = False

    def take(self) -> Changed | None:
        """Returns what has changed since the last call, if anything has."""
        if not self._changed:
            return None
        changed, self._changed = self._changed, {}
        return Changed(
            b"".join([key for key, known in changed.items() if known]),
            b"".join([key for key, known in changed.items() if not known]),
        )
