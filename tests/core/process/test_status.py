"""A status file shows a stage, and by its time that the event loop of its service runs."""

import asyncio
import os
from pathlib import Path

import pytest

from core.process.status import StatusFile


async def test_a_beat_renews_the_files_time_and_lets_it_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.process.status.BEAT_SECONDS", 0.0)
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
