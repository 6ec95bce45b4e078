"""Files of API keys, and gateways that ask for them."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.keys.api_key import KeyOptions, make_key
from infra.keys.key_file import change_keys

KeyMaker = Callable[..., str]


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    change_keys(path, lambda keys: [*keys], create=True)
    return path


@pytest.fixture
def make(key_file: Path) -> KeyMaker:

    def made(name: str, **options: object) -> str:
        key = make_key(name, KeyOptions(**options), time.time())  # type: ignore[arg-type]
        change_keys(key_file, lambda keys: [*keys, key.record])
        return key.text

    return made
