"""A file of keys is replaced as a whole, is its owner's alone, and says in a sentence what is wrong with it."""

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from contracts.errors import ConfigError
from infra.keys.api_key import KeyOptions, KeyRecord, make_key
from infra.keys.key_file import change_keys, read_keys
from tests.waiting import DEADLINE_S


def record(name: str, **options: object) -> KeyRecord:
    return make_key(name, KeyOptions(**options), 0).record  # type: ignore[arg-type]


def add(path: Path, *records: KeyRecord) -> None:
    change_keys(path, lambda keys: [*keys, *records], create=True)


def test_what_is_written_is_read_and_only_the_owner_may(tmp_path: Path) -> None:
    path, one = tmp_path / "new" / "keys.json", record("one", slo="ttft=1s")
    add(path, one)
    add(path, record("two"))
    assert read_keys(path)[0] == one and [key.name for key in read_keys(path)] == ["one", "two"]
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    assert [*path.parent.iterdir()] == [path]


def test_a_change_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    add(path, record("one"))
    before = path.stat().st_ino, path.read_bytes()

    def fails(keys: Sequence[KeyRecord]) -> list[KeyRecord]:
        raise ConfigError("NAME", "one", "is taken")

    with pytest.raises(ConfigError, match="is taken"):
        change_keys(path, fails)
    assert (path.stat().st_ino, path.read_bytes()) == before and [*tmp_path.iterdir()] == [path]


def test_changes_at_once_are_all_there(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    names = [f"key-{number}" for number in range(12)]
    threads = [threading.Thread(target=add, args=(path, record(name))) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sorted(key.name for key in read_keys(path)) == sorted(names)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        ("", "is no file of keys"),
        ("[]", "is no file of keys"),
        ('{"keys": [{"id": "0123456789ab"}]}', "missing required field `name`"),
        ('{"keys": [], "more": 1}', "more"),
    ],
)
def test_a_file_that_is_none_is_refused_by_name(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=r"--api-keys.*keys\.json") as refused:
        read_keys(path)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_two_keys_of_one_name_and_a_bad_objective_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    add(path, record("twice"), record("twice"))
    with pytest.raises(ConfigError, match="two keys have the name 'twice'"):
        read_keys(path)
    path.unlink()
    add(path, record("one", slo="soon"))
    with pytest.raises(ConfigError, match="slo of 'one': 'soon'"):
        read_keys(path)
