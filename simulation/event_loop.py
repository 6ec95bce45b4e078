"""An asyncio event loop in simulated time: code that serves waits, sleeps and times out on the timeline."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from typing import Any

from simulation.timeline import Timeline


class SimulatedLoop:
    """What tasks, futures, sleeps and time-outs need of an event loop. It waits for no socket and no thread."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._loop: Any = self  # as asyncio takes it, which asks for no class

    @contextmanager
    def running(self) -> Iterator[None]:
        """Makes it the running loop of this thread, inside another one too."""
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self._loop)
        try:
            yield
        finally:
            asyncio._set_running_loop(outer)

    def time(self) -> float:
        return self._timeline.now

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._loop)

    def create_task(self, coro: Coroutine[Any, Any, Any], **named: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self._loop, **named)

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self._loop, context)
        self._timeline.soon(partial(_run, handle))
        return handle

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, **how: Any) -> asyncio.TimerHandle:
        return self.call_at(self._timeline.now + delay, callback, *args, **how)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self._loop, context)
        self._timeline.at(when, partial(_run, handle))
        return handle

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Ends the simulation by a callback's exception. Tasks that still sleep at its end are no error."""
        if "handle" in context:
            raise context["exception"]

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leaves the action on the timeline, where it does nothing."""


def _run(handle: asyncio.Handle) -> None:
    if not handle.cancelled():
        handle._run()
