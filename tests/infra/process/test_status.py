"""A status file shows a stage, and by its time that the event loop of its service runs."""

import asyncio
import os
from pathlib import Path

import pytest

from infra.process.status import StatusFile, read_status
from tests.full_disk import room


async def test_a_beat_renews_the_files_time_and_lets_it_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.process.status.BEAT_SECONDS", 0.0)
    path = tmp_path / "status"
    status = StatusFile(str(path))
    status.ready("somewhere")
    os.utime(path, (1, 1))
    beating = [asyncio.create_task(each.beat()) for each in (status, StatusFile(""))]
    while path.stat().st_mtime == 1:  # the test's own time limit bounds it
        await asyncio.sleep(0)
    path.unlink()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not path.exists() and not any(task.done() for task in beating)
    for task in beating:
        task.cancel()
    await asyncio.gather(*beating, return_exceptions=True)


async def test_a_status_that_finds_no_room_is_written_when_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.process.status.BEAT_SECONDS", 0.0)
    path = tmp_path / "status"
    status = StatusFile(str(path))
    status.report("loading weights", 40.0)
    with room(0):
        status.ready("somewhere")
    old = read_status(path)
    assert old is not None and old.stage == "loading weights"
    beating = asyncio.create_task(status.beat())
    while (now := read_status(path)) is None or now.stage != "ready":  # the test's own time limit bounds it
        await asyncio.sleep(0)
    assert now.address == "somewhere"
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
