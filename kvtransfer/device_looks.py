"""Polls devices for the end of their work, instead of waiting for it."""

import asyncio
from collections.abc import Callable, Hashable

LOOK_PAUSE_S = 0.0002


class DeviceLooks:
    """Calls back when a device has done a piece of work, in the order in which the work was begun.

    The granted blocks bound the work under way.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[Hashable, tuple[Callable[[], bool], Callable[[], None]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __contains__(self, key: Hashable) -> bool:
        return key in self._under_way

    def when(self, key: Hashable, done: Callable[[], bool], act: Callable[[], None]) -> None:
        """Calls `act` when `done` is true, perhaps at once; `key` names the work while it is under way."""
        assert key not in self._under_way
        if not self._under_way and done():
            act()
            return
        self._under_way[key] = (done, act)
        self._look_later()

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_PAUSE_S, self._look)

    def _look(self) -> None:
        self._timer = None
        while self._under_way:
            key, (done, act) = next(iter(self._under_way.items()))
            if not done():
                self._look_later()
                return
            del self._under_way[key]
            act()

    def close(self) -> None:
        """Forgets all work under way."""
        self._under_way.clear()
        if self._timer is not None:
            self._timer.cancel()
