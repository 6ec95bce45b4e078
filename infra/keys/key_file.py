"""Reads and changes files of API keys: `{"keys": [{"id", "name", "salt", "hash", …}]}`, documented for operators.

A file is replaced as a whole, so that readers see either the old or the new content. Only its owner can read it.
"""

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from contracts.errors import ConfigError
from contracts.slo import parse_objective
from infra.keys.api_key import KeyRecord

KEYS_OPTION = "--api-keys"
KEY_FILE_OPTION = "--api-key-file"
MAX_KEYS = 100_000
MAX_FILE_BYTES = 64 << 20


class KeyFile(Struct, frozen=True, forbid_unknown_fields=True):
    keys: Annotated[list[KeyRecord], Meta(max_length=MAX_KEYS)]


def read_keys(path: Path) -> list[KeyRecord]:
    """Returns the keys of a file. Raises `ConfigError` if it is missing or broken."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(KEYS_OPTION, str(path), error.strerror or "cannot be read") from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(KEYS_OPTION, str(path), f"a file of keys has at most {MAX_FILE_BYTES} bytes")
    try:
        keys = msgspec.json.decode(content, type=KeyFile).keys
    except msgspec.DecodeError as error:
        raise ConfigError(KEYS_OPTION, str(path), f"is no file of keys: {error}") from None
    for what, values in (("name", [key.name for key in keys]), ("id", [key.id for key in keys])):
        if len(set(values)) < len(values):
            twice = next(value for value in values if values.count(value) > 1)
            raise ConfigError(KEYS_OPTION, str(path), f"two keys have the {what} {twice!r}")
    for key in keys:
        parse_objective(key.slo, f"{KEYS_OPTION} {path}: slo of {key.name!r}")
    return keys


def read_key(path: str) -> str:
    """Returns the only key in a client's file; empty for an empty path. Raises `ConfigError`."""
    if not path:
        return ""
    try:
        text = Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        raise ConfigError(KEY_FILE_OPTION, path, "cannot be read") from None
    if not text or not text.isprintable() or " " in text:
        raise ConfigError(KEY_FILE_OPTION, path, "is no file with a key, alone on its line")
    return text


def change_keys(path: Path, changed: Callable[[Sequence[KeyRecord]], list[KeyRecord]], create: bool = False) -> None:
    """Replaces the keys of a file by `changed(keys)`. If that raises, the file stays as it is.

    With `create`, a missing file counts as one without keys. Raises `ConfigError` if it cannot be written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(path.parent):
            present = read_keys(path) if path.exists() or not create else []
            _replace(path, msgspec.json.format(msgspec.json.encode(KeyFile(changed(present))), indent=2) + b"\n")
    except OSError as error:
        raise ConfigError(KEYS_OPTION, str(path), error.strerror or "cannot be written") from None


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
