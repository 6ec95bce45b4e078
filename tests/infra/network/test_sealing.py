"""What is sealed opens only at its place, with its secret, unaltered."""

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import ConfigError, SealError
from infra.network.sealing import Sealer, load_secret, new_secret
from tests.full_disk import room

SECRET = b"0123456789abcdef0123456789abcdef"


@given(st.binary(max_size=300), st.text(max_size=20))
def test_a_body_comes_back(body: bytes, place: str) -> None:
    sealer = Sealer(SECRET, "test")
    sealed = sealer.seal(body, place)
    assert sealer.open(sealed, place) == body
    assert len(body) < 8 or body not in sealed


@given(st.binary(min_size=1, max_size=100), st.data())
def test_an_altered_body_is_refused(body: bytes, data: st.DataObject) -> None:
    sealer = Sealer(SECRET, "test")
    sealed = bytearray(sealer.seal(body, "here"))
    sealed[data.draw(st.integers(0, len(sealed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(SealError):
        sealer.open(bytes(sealed), "here")


def test_another_place_purpose_or_secret_is_refused() -> None:
    sealed = Sealer(SECRET, "test").seal(b"body", "here")
    for sealer, place in (
        (Sealer(SECRET, "test"), "there"),
        (Sealer(SECRET, "other"), "here"),
        (Sealer(SECRET[::-1], "test"), "here"),
    ):
        with pytest.raises(SealError):
            sealer.open(sealed, place)


@pytest.mark.parametrize("junk", [b"", b"short", b"x" * 11, b"y" * 40])
def test_junk_is_refused(junk: bytes) -> None:
    with pytest.raises(SealError):
        Sealer(SECRET, "test").open(junk, "here")


def test_a_users_own_secret_is_made_once_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first = load_secret("")
    assert load_secret("") == first
    (file,) = tmp_path.rglob("secret")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_missing_or_short_secret_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--secret-file"):
        load_secret(str(tmp_path / "none"))
    short = tmp_path / "short"
    short.write_text("abc")
    with pytest.raises(ConfigError, match="at least 16"):
        load_secret(str(short))
    good = tmp_path / "good"
    good.write_text(new_secret() + "\n")
    assert len(load_secret(str(good))) == 64


def test_a_full_disk_leaves_no_part_of_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with (
        room(8),
        pytest.raises(ConfigError, match=r"^--secret-file: '.*/secret': no secret can be made: File too large"),
    ):
        load_secret("")
    assert list((tmp_path / "baton").iterdir()) == []
    assert len(load_secret("")) == 64
