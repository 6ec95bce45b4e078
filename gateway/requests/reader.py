"""Waits for whatever comes of an answer's streams: with one future and one timer, however many tokens come.

Most of what comes needs nobody to wait for it: what can be passed on at once is, in one turn of the event loop for all
answers of a gateway, and the task that reads an answer sleeps on.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from gateway.requests.stream import Stream

Pass = Callable[[int], bool]
"""Passes on what has come of the stream at this place, or does nothing and returns False: its reader has to wake up."""


class Turn:
    """Calls what is due once in this turn of the event loop, when all that lay ready has been taken."""

    def __init__(self) -> None:
        self._due: list[Callable[[float], None]] = []

    def call(self, work: Callable[[float], None]) -> None:
        """Has `work` called soon, with the loop's time."""
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
    """Hears of news from some streams, by their places among them. Made inside a running event loop, and closed."""

    def __init__(self, streams: Sequence[Stream], patience: float, pass_on: Pass = lambda place: False) -> None:
        self._streams = streams
        self._patience = patience  # s
        self._pass_on = pass_on
        self._loop = asyncio.get_running_loop()
        self._ready: list[int] = []  # each once
        self._called = False  # the turn has to look at these
        self._waiter: asyncio.Future[None] | None = None
        self._since = 0.0  # when it waits for news from, s of the loop
        self._timer: asyncio.TimerHandle | None = None  # goes off at the end of some wait's patience, and is made anew
        for place, stream in enumerate(streams):
            stream.listen(partial(self._heard, place))

    async def wait(self) -> Sequence[int]:
        """Returns the streams that have news, or none if nothing comes while it has patience."""
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
        """Listens no more."""
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
            waiter.set_exception(error)  # for whoever answers
            return
        if self._ready:
            waiter.set_result(None)
        else:
            self._since = now

    def _look(self) -> None:
        """Ends a wait that has been as long as it may."""
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        left = self._since + self._patience - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._waiter.set_result(None)
