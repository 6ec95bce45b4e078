"""Peers are installed into environments of their own: by the real pip, from wheels that lie in a directory."""

import zipfile
from pathlib import Path

import pytest

from benchmarks.peers.setup import Peer, PeerError, set_up
from launcher.stages import StageDisplay


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip asks no index."""
    directory = tmp_path / "wheels"
    directory.mkdir()
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


def wheel(directory: Path, name: str, *needs: str) -> Path:
    path = directory / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n" + "".join(f"Requires-Dist: {n}\n" for n in needs)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "")
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def installed(environment: Path) -> set[str]:
    return {path.name.partition("-")[0] for path in environment.glob("lib/python3*/site-packages/*.dist-info")}


def test_an_installation_that_failed_is_resumed_and_then_left_alone(tmp_path: Path, wheels: Path) -> None:
    peer = Peer("peer", "none", ("first",), bare="second", without=frozenset({"absent"}))
    wheel(wheels, "first")
    with pytest.raises(
        PeerError, match=r"^peer: downloading second failed: ERROR: .*second.*\(log: .*peer-setup\.log\)"
    ):
        set_up(tmp_path, peer, StageDisplay())
    environment = tmp_path / "peer"
    assert "first" in installed(environment) and not (environment / "stamp").exists()
    wheel(wheels, "second", "third", "absent>=2", 'fourth; extra == "more"')
    wheel(wheels, "third")
    set_up(tmp_path, peer, StageDisplay())
    assert {"first", "second", "third"} <= installed(environment)
    before = (environment / "stamp").stat().st_mtime_ns
    for path in wheels.iterdir():
        path.unlink()  # nothing is asked for again
    set_up(tmp_path, peer, StageDisplay())
    assert (environment / "stamp").stat().st_mtime_ns == before
