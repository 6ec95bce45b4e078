"""Waits for news from an answer's streams, with one future and one timer for any number of tokens.

Most news needs no waiting task: it is passed on at once, in one turn of the event loop for all answers of a gateway,
while the task that reads the answer sleeps.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from gateway.requests.stream import Stream

Pass = Callable[[int], bool]
"""Passes on the news of the stream at this index, or returns False: then its reader must wake up."""


class Turn:
    """Runs callbacks once in this turn of the event loop, after all messages that were ready."""

    def __init__(self) -> None:
        self._due: list[Callable[[float], None]] = []

    def call(self, work: Callable[[float], None]) -> None:
        """Schedules `work`, which gets the loop's time."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self._run)
        self._due.append(work)

    def _run(self) -> None:
        due, self._due = self._due, []
        now = asyncio.get_running_loop().time()
        for work in due:
            work(now)


_NEXT_TURN = Turn()


class AnswerReader:
    """Waits for news from streams, known by their index. Made inside a running event loop; must be closed."""

    def __init__(self, streams: Sequence[Stream], patience: float, pass_on: Pass = lambda place: False) -> None:
        self._streams = streams
        self._patience = patience  # s
        self._pass_on = pass_on
        self._loop = asyncio.get_running_loop()
        self._ready: list[int] = []  # each once
        self._called = False  # `_news` is scheduled
        self._waiter: asyncio.Future[None] | None = None
        self._since = 0.0  # start of the wait, s of the loop's clock
        self._timer: asyncio.TimerHandle | None = None  # renewed when it fires before the end of the wait
        for place, stream in enumerate(streams):
            stream.listen(partial(self._heard, place))

    async def wait(self) -> Sequence[int]:
        """Returns the indices of streams with news; none after `patience` s without news."""
        if not self._ready:
            self._since = self._loop.time()
            if self._timer is None:
                self._timer = self._loop.call_later(self._patience, self._look)
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        ready, self._ready = self._ready, []
        return ready

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for stream in self._streams:
            stream.listen(None)

    def _heard(self, place: int) -> None:
        self._ready.append(place)
        if self._waiter is not None and not self._called:
            self._called = True
            _NEXT_TURN.call(self._news)

    def _news(self, now: float) -> None:
        self._called = False
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        ready, self._ready = self._ready, []
        try:
            for place in ready:
                if not self._pass_on(place):
                    self._ready.append(place)
        except Exception as error:
            waiter.set_exception(error)  # raised in the task that reads the answer
            return
        if self._ready:
            waiter.set_result(None)
        else:
            self._since = now

    def _look(self) -> None:
        """Ends a wait after `patience` s."""
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        left = self._since + self._patience - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._waiter.set_result(None)
