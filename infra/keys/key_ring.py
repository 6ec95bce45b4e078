"""The API keys of some files, read again when they change."""

import logging
import secrets
from collections.abc import Sequence
from pathlib import Path

from contracts.errors import ConfigError
from infra.file_version import FileVersion, file_version
from infra.keys.api_key import SALT_BYTES, KeyRecord, id_of, is_key_of
from infra.keys.key_file import read_keys

CHECK_INTERVAL_S = 1.0  # between two checks whether a file has changed
NO_KEY = KeyRecord(id="0" * 12, name="nobody", salt=secrets.token_hex(SALT_BYTES), hash="00" * 32, created_at=0)
log = logging.getLogger("baton.keys")


class KeyRing:
    """The keys of some files."""

    def __init__(self, paths: Sequence[str]) -> None:
        """Reads the files. Raises `ConfigError` for a missing or broken file."""
        self._versions: dict[Path, FileVersion | None] = {}
        self._keys: dict[Path, list[KeyRecord]] = {}
        for path in map(Path, paths):
            self._versions[path] = file_version(path)
            self._keys[path] = read_keys(path)
        self._known: dict[str, KeyRecord] = {}
        self._index()

    def find(self, text: str) -> KeyRecord | None:
        """Returns the record of a key, None for an unknown key.

        A key is found by its public part, then hashed and compared once in any case, so that the time shows neither how
        much of it is right nor whether its public part is known.
        """
        record = self._known.get(id_of(text), NO_KEY)
        return record if is_key_of(text, record) and record is not NO_KEY else None

    def known(self, id: str) -> KeyRecord | None:
        """Returns the record with this public part, None if unknown. The caller has checked the key before."""
        return self._known.get(id)

    def refresh(self) -> bool:
        """Reads changed files again, and returns whether a key may have gone.

        The keys of a file that is missing or broken now stay as they were.
        """
        known = self._known
        for path, before in self._versions.items():
            version = file_version(path)
            if version == before:
                continue
            self._versions[path] = version
            try:
                self._keys[path] = read_keys(path)
            except ConfigError as error:
                log.warning("%s; its keys stay as they were", error)
            else:
                self._index()
                log.info("%s: %d keys are valid", path, len(self._keys[path]))
        return known is not self._known

    def _index(self) -> None:
        """Replaces the table as a whole, so that other threads see the old or the new one."""
        self._known = {key.id: key for keys in self._keys.values() for key in keys}
