"""The part of a `Shaper` that APIs with one answer for each request share: Responses and Anthropic's Messages."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Generic, TypeVar

from contracts.messages.sampling import Finish
from gateway.output.parts import Content, Part
from gateway.requests.stream import Delta

Event = TypeVar("Event")


class OneAnswerShaper(ABC, Generic[Event]):
    """Streams one answer as events, which `encoded` turns into bytes."""

    _in_turns = False  # events take long to make, and let other requests run in between

    def __init__(self, encoded: Callable[[Event], bytes]) -> None:
        self._encoded = encoded
        self._begun = False
        self._finish: Finish = "stop"
        self._stop_reason: int | str | None = None

    async def chunks(self, choice: int, parts: Sequence[Part], delta: Delta, last: bool) -> AsyncIterator[bytes]:
        """Yields the beginning before the first events."""
        if not self._begun:
            self._begun = True
            yield self._joined(self._first())
        if events := await self._shaped(parts, delta):
            yield self._joined(events)
        if delta.finish is not None:
            self._finish, self._stop_reason = delta.finish, delta.stop_reason

    def quick(self, choice: int, parts: Sequence[Part], token_ids: Sequence[int]) -> bytes | None:
        """Returns the events of parts in the middle of the answer."""
        return self._joined(self._next(parts, token_ids)) if self._begun and not self._in_turns else None

    def text(self, choice: int, text: str, token_ids: Sequence[int]) -> bytes | None:
        """Returns the events of a text in the middle of the answer."""
        return self.quick(choice, (Content(text),) if text else (), token_ids)

    def _joined(self, events: Sequence[Event]) -> bytes:
        return b"".join(map(self._encoded, events))

    @abstractmethod
    def _first(self) -> Sequence[Event]:
        """Returns the events before everything else."""

    @abstractmethod
    def _next(self, parts: Sequence[Part], token_ids: Sequence[int]) -> Sequence[Event]:
        """Returns the events of parts that consist of these tokens."""

    async def _shaped(self, parts: Sequence[Part], delta: Delta) -> Sequence[Event]:
        """Returns the events of `_next` with everything that is made in turns."""
        return self._next(parts, delta.token_ids)
