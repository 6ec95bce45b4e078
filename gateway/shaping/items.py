"""Turns the parts of an answer into items, one after the other: texts, thoughts and calls of tools.

An API adds what its items and events look like. The Responses API calls them output items, Anthropic content blocks.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from gateway.output.parts import CallArguments, CallBegins, Content, Part, Reasoning

Item = TypeVar("Item")
Event = TypeVar("Event")


class ItemShape(ABC, Generic[Item, Event]):
    """Items of one answer. Only the last can be open: parts of its kind extend it, other parts close it."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._pieces: list[str] = []  # text of the open item
        self._open: type[Part] | None = None  # the kind of parts that extend the open item

    def take(self, parts: Iterable[Part]) -> Sequence[Event]:
        """Returns the events of these parts, often none."""
        events: list[Event] = []
        for part in parts:
            if isinstance(part, CallBegins):
                events += self._begin(part, CallArguments)
            elif part.text:
                if self._open is not type(part):
                    assert not isinstance(part, CallArguments), "arguments follow their call"
                    events += self._begin(part, type(part))
                self._pieces.append(part.text)
                events += self._extended(part)
        return events

    def _begin(self, part: Content | Reasoning | CallBegins, extends: type[Part]) -> Sequence[Event]:
        events = list(self._close())
        self._items.append(self._item(part))
        self._open = extends
        return [*events, *self._opened(self._items[-1])]

    def _close(self, cut: bool = False) -> Sequence[Event]:
        """Closes the open item, if there is one. Returns its last events. `cut`: the answer has reached its limit."""
        if self._open is None:
            return ()
        text = "".join(self._pieces)
        self._pieces, self._open = [], None
        return self._closed(self._items[-1], text, cut)

    @abstractmethod
    def _item(self, part: Content | Reasoning | CallBegins) -> Item:
        """Returns a new, empty item for a part that begins one."""

    @abstractmethod
    def _opened(self, item: Item) -> Sequence[Event]:
        """Returns the events that begin an item."""

    @abstractmethod
    def _extended(self, part: Content | Reasoning | CallArguments) -> Sequence[Event]:
        """Returns the events of more text in the last item."""

    @abstractmethod
    def _closed(self, item: Item, text: str, cut: bool) -> Sequence[Event]:
        """Puts the whole text into an item, and returns the events that end it."""
