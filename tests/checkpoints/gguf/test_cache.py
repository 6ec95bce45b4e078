"""What was unpacked stays while somebody uses it, and goes when nobody has for long, or there is too much."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from checkpoints.gguf import cache
from checkpoints.gguf.cache import MIN_AGE_S, REMOVED_PREFIX, hold, trim
from checkpoints.gguf.unpacking import unpacked
from tests.checkpoints.gguf.test_unpacking import write_model

DAY_S = 86400.0
HOLDER = """
import sys
from pathlib import Path
from checkpoints.gguf.cache import hold
print(hold(Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""
NOW_S = 2_000_000_000.0


def used(place: Path, name: str, days_ago: float, size: int = 10) -> Path:
    """Makes a directory with a file of so many bytes, last used so long ago."""
    directory = place / name
    directory.mkdir(parents=True)
    (directory / "tokenizer.json").write_bytes(bytes(size))
    os.utime(directory, (NOW_S - days_ago * DAY_S,) * 2)
    return directory


def test_what_was_not_used_for_long_goes(tmp_path: Path) -> None:
    old, new = used(tmp_path, "old", 91), used(tmp_path, "new", 89)
    assert trim(tmp_path, NOW_S) == [old] and list(tmp_path.iterdir()) == [new]


def test_the_least_recently_used_go_beyond_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MAX_CACHE_BYTES", 250)
    kept = [used(tmp_path, name, days, 100) for name, days in (("b", 1), ("d", 2))]
    gone = [used(tmp_path, name, days, 100) for name, days in (("a", 3), ("c", 4))]
    assert trim(tmp_path, NOW_S) == gone
    assert sorted(tmp_path.iterdir()) == sorted(kept)


def test_what_is_being_made_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MAX_CACHE_BYTES", 0)
    used(tmp_path, "young", 0.9 * MIN_AGE_S / DAY_S)
    assert trim(tmp_path, NOW_S) == []


def test_what_somebody_else_uses_stays_until_they_end(tmp_path: Path) -> None:
    """Has another process hold a directory, which was last used long ago; what holds it ends with it."""
    directory = used(tmp_path, "mine", 1)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as user:
        assert user.stdin is not None and user.stdout is not None
        assert user.stdout.readline() == "True\n" and directory.stat().st_mtime > time.time() - 60, "it was used now"
        os.utime(directory, (NOW_S - 200 * DAY_S,) * 2)
        assert trim(tmp_path, NOW_S) == [] and (directory / "tokenizer.json").is_file()
        user.stdin.close()
        user.wait()
    assert trim(tmp_path, NOW_S) == [directory] and not list(tmp_path.iterdir())


def test_a_directory_that_is_gone_is_not_held(tmp_path: Path) -> None:
    assert not hold(tmp_path / "none")
    mine = used(tmp_path, "mine", 1)
    assert hold(mine) and hold(mine)


def test_what_was_left_half_removed_goes(tmp_path: Path) -> None:
    used(tmp_path, f"{REMOVED_PREFIX}x", 1)
    trim(tmp_path, NOW_S)
    assert not list(tmp_path.iterdir())


def test_many_starts_at_once_find_a_model_while_others_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start makes room for its own; whatever it returns is whole."""
    files = [write_model(tmp_path / str(number) / "mine.gguf")[0] for number in range(4)]
    monkeypatch.setattr(cache, "MAX_CACHE_BYTES", 0)
    monkeypatch.setattr(cache, "MIN_AGE_S", -1.0)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(unpacked, files * 4))
    assert len(set(found)) == 4 and all((each / "tokenizer.json").is_file() for each in found)
