"""Owns the asyncio tasks of a part of a service: an error in one is logged, and ends the part.

No other module makes tasks. A part whose tasks run until it closes has a `Tasks`. A function that awaits its own task's
result in any case starts it with `child`.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

from contracts.errors import BatonError
from infra.process.ending import end

Result = TypeVar("Result")
log = logging.getLogger("baton.tasks")


class Tasks:
    """Runs the tasks of one part until `close`. Keeps the first error, and calls `failed` then.

    A `BatonError` is logged as its message, a bug with its traceback.
    """

    def __init__(self, part: str, failed: Callable[[], None] = lambda: None) -> None:
        """Needs no running loop yet. `part` names it in the log, as the beginning of a sentence."""
        self.error: BaseException | None = None
        self._part = part
        self._failed = failed
        self._tasks: set[asyncio.Task[Any]] = set()
        self._broken = asyncio.Event()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Starts a task. `infra.process.ending.end` ends it before the others."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def wait(self) -> NoReturn:
        await self._broken.wait()
        assert self.error is not None
        raise self.error

    async def finished(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        await end(tuple(self._tasks))

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if isinstance(error, BatonError):
            log.error("%s cannot go on: %s", self._part, error)
        else:
            log.error("%s cannot go on: a task died of a bug", self._part, exc_info=error)
        if self.error is None:
            self.error = error
            self._broken.set()
            self._failed()


def child(work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
    """Starts a task whose result the caller awaits in any case."""
    return asyncio.create_task(work)
