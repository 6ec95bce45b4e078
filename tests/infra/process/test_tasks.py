"""What a task dies of is heard: in the log, and by its owner."""

import asyncio

import pytest

from contracts.errors import StoreUnavailable
from infra.process.tasks import Tasks, child


async def fails(error: Exception) -> None:
    raise error


async def for_ever() -> None:
    await asyncio.Event().wait()


async def test_a_bug_is_logged_with_its_traceback_and_told_to_the_owner(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    tasks = Tasks("the front", lambda: told.append("broken"))
    tasks.start(for_ever())
    tasks.start(fails(ValueError("a bug")))
    tasks.start(fails(ValueError("another")))
    with pytest.raises(ValueError, match="a bug"):
        await tasks.wait()
    await asyncio.sleep(0)
    assert told == ["broken"] and isinstance(tasks.error, ValueError) and len(tasks) == 1
    assert "the front cannot go on" in caplog.text and "in fails" in caplog.text and "another" in caplog.text
    await tasks.close()
    assert len(tasks) == 0


async def test_an_error_with_a_name_is_logged_as_a_sentence(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks("the front")
    tasks.start(fails(StoreUnavailable("Redis is away")))
    with pytest.raises(StoreUnavailable):
        await tasks.wait()
    assert "Redis is away" in caplog.text and "Traceback" not in caplog.text


async def test_a_task_that_ends_or_is_ended_breaks_nothing() -> None:
    tasks = Tasks("the front")
    assert await tasks.start(asyncio.sleep(0, "done")) == "done"
    await tasks.finished()
    tasks.start(for_ever())
    await tasks.close()
    assert tasks.error is None and len(tasks) == 0


async def test_a_childs_result_is_its_callers() -> None:
    assert await child(asyncio.sleep(0, 7)) == 7
