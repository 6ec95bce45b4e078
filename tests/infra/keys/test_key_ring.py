"""A ring follows its files: what is new there opens, what is gone does not, and a broken file changes nothing."""

import os
import time
from pathlib import Path

import pytest

from contracts.errors import ConfigError
from infra.keys import key_ring
from infra.keys.api_key import KeyOptions, NewKey, make_key
from infra.keys.key_file import change_keys
from infra.keys.key_ring import KeyRing


def add(path: Path, name: str) -> NewKey:
    key = make_key(name, KeyOptions(), time.time())
    change_keys(path, lambda keys: [*keys, key.record], create=True)
    return key


def test_keys_come_and_go_with_their_file(tmp_path: Path) -> None:
    path, other = tmp_path / "keys.json", tmp_path / "others.json"
    first, elsewhere = add(path, "first"), add(other, "first")
    ring = KeyRing([str(path), str(other)])
    second = add(path, "second")
    assert ring.find(second.text) is None
    ring.refresh()
    assert [ring.find(key.text) for key in (first, second, elsewhere)] == [
        first.record,
        second.record,
        elsewhere.record,
    ]
    change_keys(path, lambda keys: [key for key in keys if key.name != "first"])
    ring.refresh()
    assert ring.find(first.text) is None and ring.find(second.text) and ring.find(elsewhere.text)


def test_a_file_of_the_same_size_and_time_and_even_inode_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    old = add(path, "name")
    ring, mark = KeyRing([str(path)]), path.stat()
    change_keys(path, lambda keys: [])
    new = add(path, "name")
    os.utime(path, ns=(mark.st_atime_ns, mark.st_mtime_ns))
    assert path.stat().st_size == mark.st_size
    ring.refresh()
    assert ring.find(old.text) is None and ring.find(new.text) is not None


@pytest.mark.parametrize("breaks", ["{", None])
def test_a_file_that_breaks_keeps_its_keys_and_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, breaks: str | None
) -> None:
    path = tmp_path / "keys.json"
    key = add(path, "name")
    ring = KeyRing([str(path)])
    if breaks is None:
        path.unlink()
    else:
        path.write_text(breaks)
    for _ in range(3):
        ring.refresh()
        assert ring.find(key.text) == key.record
    (line,) = [entry.getMessage() for entry in caplog.records]
    assert str(path) in line and "stay as they were" in line and key.text not in line
    path.unlink(missing_ok=True)
    another = add(path, "another")
    ring.refresh()
    assert ring.find(another.text) and ring.find(key.text) is None


def test_a_ring_of_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--api-keys"):
        KeyRing([str(tmp_path / "nothing")])


def test_the_stand_in_for_unknown_keys_is_nobody() -> None:
    ring = KeyRing([])
    assert ring.find(f"baton-{key_ring.NO_KEY.id}-{'0' * 64}") is None and ring.find("") is None
