"""The part of a `Shaper` that APIs with one answer for each request share: Responses, Messages and Ollama's."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Generic, TypeVar

from contracts.messages.sampling import Finish
from gateway.output.parts import Part
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

    def chunks(self, choice: int, parts: Sequence[Part], delta: Delta, last: bool) -> bytes | AsyncIterator[bytes]:
        """Returns the events of these parts, after the first events if nothing was sent yet."""
        begin = b"" if self._begun else self._joined(self._first())
        self._begun = True
        if delta.finish is not None:
            self._finish, self._stop_reason = delta.finish, delta.stop_reason
        if self._in_turns:
            return self._awaited(begin, parts, delta)
        return begin + self._joined(self._next(parts, delta.token_ids))

    async def _awaited(self, begin: bytes, parts: Sequence[Part], delta: Delta) -> AsyncIterator[bytes]:
        if events := begin + self._joined(await self._shaped(parts, delta)):
            yield events

    def _joined(self, events: Sequence[Event]) -> bytes:
        return b"".join(map(self._encoded, events))

    @abstractmethod
    def _first(self) -> Sequence[Event]:
        """Returns the first events."""

    @abstractmethod
    def _next(self, parts: Sequence[Part], token_ids: Sequence[int]) -> Sequence[Event]:
        """Returns the events of parts that consist of these tokens."""

    async def _shaped(self, parts: Sequence[Part], delta: Delta) -> Sequence[Event]:
        return self._next(parts, delta.token_ids)
